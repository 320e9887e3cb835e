//! etcd servers of three versions.
//!
//! [`EtcdVersion`] finds the binaries, [`EtcdOptions`] describes the difference from the defaults, [`Etcd`] owns one
//! process and its directory, [`EtcdCluster`] several members. `ask` contains the queries of tests, `tools` runs the
//! command line tools of etcd, and `wires` proxies the peer connections that a test cuts.

mod queries;
mod cluster;
mod options;
mod process;
mod tools;
mod version;
mod peer_proxy;

pub use queries::{KeyValueHash, Kv, LeaseInfo, hash_kv, list_keys_at, current_revision};
pub use cluster::EtcdCluster;
pub use options::EtcdOptions;
pub(crate) use process::signal_process;
pub use process::{EtcdServer, EtcdStartError, free_url};
pub use version::EtcdRelease;
