//! Real etcd servers, loads and backups for them, and real Kubernetes API servers, for tests.
//!
//! ```text
//! binaries (make setup) → Etcd | EtcdCluster ← Load (seeded)
//!                              │
//!                              ├→ queries: HashKV, keys at a revision, leases, snapshot
//!                              ├→ Recorder → <dir>/<prefix>/v2/{Full,Incr}-…
//!                              ├→ SidecarProcess → the same, by the program under test
//!                              └→ ApiServer (kube-apiserver, controllers) → clients, namespaces
//! FaultProxy: in front of any server, closed or slow on demand; proxies between members that can be cut
//! ```
//!
//! A test passes a version, options and a seed. It gets a live server and its answers as plain comparable values, or a
//! bucket in the layout of etcd-backup-restore. The code that writes the bucket shares nothing with the crates under
//! test, so that it can disagree with them.
//!
//! **Invariants**: a server is killed when its owner is dropped. Two tests never share a port or a directory. The same
//! seed produces the same history. The crate returns no errors: a fixture that cannot be created fails the test with a
//! message that says why.
//!
//! Use it as a dev-dependency only.
#![expect(
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a fixture that cannot be created fails the test"
)]

pub mod ca;
mod each_version;
pub mod etcd;
pub mod fault_proxy;
pub mod kube;
pub mod man_pages;
pub mod paths;
pub mod ports;
mod proxy_runtime;
pub mod recorder;
pub mod sidecar;
pub mod workload;

pub use etcd::{EtcdCluster, EtcdOptions, EtcdRelease, EtcdServer, KeyValueHash, Kv, LeaseInfo};
pub use fault_proxy::{FaultProxy, ProxyMode};
pub use kube::ApiServer;
pub use recorder::Recorder;
pub use sidecar::{SidecarOptions, SidecarProcess};
pub use workload::Workload;
