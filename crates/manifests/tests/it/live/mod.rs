//! Rendered objects on real servers.

mod controller;
mod probes;
mod rbac;
