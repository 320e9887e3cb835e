//! The sidecar against real parts.
