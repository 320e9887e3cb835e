//! What is rendered, before real servers.

mod probes;
mod program;
mod rights;
