//! Common helpers: the restorer, backups, states to compare.

mod backup;
mod fixture;
mod state;
mod tree;

use std::path::Path;

use mainstay_testkit::{EtcdOptions, EtcdRelease, EtcdServer};

pub(crate) use backup::{RestorerBackup, RestorerRun};
pub(crate) use fixture::Fixture;
pub(crate) use state::{EtcdState, assert_same_keys};
pub(crate) use tree::FileTree;

/// Starts an etcd on a restored directory.
pub(crate) async fn start_etcd_on(version: EtcdRelease, data_dir: &Path) -> EtcdServer {
    EtcdServer::start(version, EtcdOptions::new().data_dir(data_dir)).await
}
