//! A real Kubernetes API server per test.
//!
//! [`ApiServer`] is an etcd, a kube-apiserver and, on request, a kube-controller-manager. There is no node: pods are
//! objects that stay as a test leaves them. `binaries` finds the programs, `pki` creates the certificates, `process` owns
//! one program.

mod binaries;
mod pki;
mod process;
mod server;

pub use server::{ApiServer, SHARED_API_ENV};
