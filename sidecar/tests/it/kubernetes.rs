//! Leases and pins against a real API server.

mod live;
mod support;
