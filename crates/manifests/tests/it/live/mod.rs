//! What is rendered, before real servers.

mod probes;
mod rights;
