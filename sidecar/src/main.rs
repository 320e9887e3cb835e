//! See [`steward_sidecar`].

fn main() {}
