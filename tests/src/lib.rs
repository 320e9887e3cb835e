//! End-to-end tests against real etcd servers and object stores.

pub mod bench;
