//! Real etcd servers, the loads that fill them and the backups taken of them, and real Kubernetes API
//! servers, for tests.
//!
//! ```text
//! binaries (make setup) → Etcd | EtcdCluster ← Load (seeded)
//!                              │
//!                              ├→ questions: HashKV, keys at a revision, leases, snapshot
//!                              ├→ Recorder → <dir>/<prefix>/v2/{Full,Incr}-…
//!                              ├→ SidecarProcess → the same, by the program under test
//!                              └→ ApiServer (kube-apiserver, controllers) → clients, namespaces
//! Gate: before any server, closed or slow on demand; wires between members, to be cut
//! ```
//!
//! **Comes in**: a version, options, a seed. **Goes out**: a live server, and what it answered,
//! as plain comparable values; or a bucket in the peer's layout, written by code that shares
//! nothing with the crates under test, so that it can disagree with them.
//!
//! **Holds**: a server dies with the value that owns it; two tests never share a port or a
//! directory; the same seed makes the same history. **Does not do**: return errors. A
//! fixture that cannot be made fails the test that asked for it, with a sentence that says why.
//!
//! A dependency of tests only.
#![expect(
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a fixture that cannot be made fails the test that asked for it"
)]

pub mod authority;
mod carrier;
mod each_version;
pub mod etcd;
pub mod gate;
pub mod kube;
pub mod load;
pub mod manual;
pub mod place;
pub mod ports;
pub mod recorder;
pub mod sidecar;

pub use etcd::{EtcdServer, EtcdCluster, EtcdOptions, EtcdRelease, KeyValueHash, Kv, LeaseInfo};
pub use gate::{FaultProxy, ProxyMode};
pub use kube::ApiServer;
pub use load::Workload;
pub use recorder::Recorder;
pub use sidecar::{SidecarOptions, SidecarProcess};
