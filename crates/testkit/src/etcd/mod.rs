//! etcd servers of three ages, started and asked.
//!
//! [`EtcdVersion`] finds the binaries, [`EtcdOptions`] states what differs from the default, [`Etcd`]
//! owns one process and its directory, [`EtcdCluster`] several that know each other. The questions a
//! test asks a server are in `ask`, the programs that come with it in `tools`. `wires` runs between
//! members whose connections a test wants to cut.

mod ask;
mod cluster;
mod options;
mod process;
mod tools;
mod version;
mod wires;

pub use ask::{KeyValueHash, Kv, LeaseInfo, hash_kv, list_keys_at, current_revision};
pub use cluster::EtcdCluster;
pub use options::EtcdOptions;
pub(crate) use process::signal_process;
pub use process::{EtcdServer, EtcdStartError, free_url};
pub use version::EtcdRelease;
