//! A real Kubernetes API server of a test's own.
//!
//! [`ApiServer`] is an etcd, a kube-apiserver on it and, when asked for, a kube-controller-manager. There
//! is no node: pods are objects that stay as a test leaves them. `binaries` finds the programs, `pki`
//! makes the certificates, `process` owns one of them.

mod binaries;
mod pki;
mod process;
mod server;

pub use server::{ApiServer, SHARED_API_ENV};
