//! Leases and pins on a real API server.

mod live;
mod world;
