//! The sidecar against real parts.

mod http;
