//! etcd servers of three versions.
//!
//! [`EtcdRelease`] finds the binaries, [`EtcdOptions`] describes the difference from the defaults, [`EtcdServer`] owns one
//! process and its directory, [`EtcdCluster`] several members. `ask` contains the queries of tests, `tools` runs the
//! command line tools of etcd, and `wires` proxies the peer connections that a test cuts.

mod cluster;
mod options;
mod peer_proxy;
mod process;
mod queries;
mod tools;
mod version;

pub use cluster::EtcdCluster;
pub use options::EtcdOptions;
pub(crate) use process::signal_process;
pub use process::{EtcdServer, EtcdStartError, free_url};
pub use queries::{KeyValueHash, Kv, LeaseInfo, current_revision, hash_kv, list_keys_at};
pub use version::EtcdRelease;
