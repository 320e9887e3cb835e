//! Rendered objects on real servers.

mod probes;
mod program;
mod rights;
