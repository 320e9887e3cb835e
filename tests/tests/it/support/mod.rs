//! What every test here needs: the program, backups to run it on, states to compare.

mod backup;
mod fixture;
mod state;
mod tree;

use std::path::Path;

use mainstay_testkit::{Etcd, EtcdOptions, EtcdVersion};

pub(crate) use backup::{Backup, Run};
pub(crate) use fixture::Fixture;
pub(crate) use state::{State, assert_same_keys};
pub(crate) use tree::Tree;

/// Starts an etcd on a restored directory.
pub(crate) async fn boot(version: EtcdVersion, data_dir: &Path) -> Etcd {
    Etcd::start(version, EtcdOptions::new().data_dir(data_dir)).await
}
