//! End-to-end tests against real etcd servers, object stores and a real Kubernetes cluster.

pub mod bench;
pub mod cluster;
pub mod demo;
pub mod local_cluster;
pub mod release;
