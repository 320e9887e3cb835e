//! Rendered objects on real servers.

mod probes;
mod controller;
mod rbac;
