//! Buckets of the sidecar and of etcdbrctl are readable by both.

use std::path::Path;
use std::time::{Duration, Instant};

use mainstay_ids::{LeaseId, Revision};
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdRelease, EtcdServer, Kv, Workload};
use tempfile::TempDir;
use tokio::time::sleep;

use super::Etcdbrctl;
use crate::sidecar::{SidecarHarness, SidecarStore};
use crate::support::{EtcdState, RestorerBackup, assert_same_keys, start_etcd_on};

/// The release line of the etcd inside etcdbrctl.
const VERSION: EtcdRelease = EtcdRelease::V3_5New;
const PREFIX: &str = "etcd-main";
/// Detects a hang.
const TIMEOUT: Duration = Duration::from_mins(2);

/// etcdbrctl does not attach leases again.
fn without_leases(mut keys: Vec<Kv>) -> Vec<Kv> {
    for kv in &mut keys {
        kv.lease = LeaseId::NONE;
    }
    keys
}

/// An etcd with a backup that the sidecar made: a full snapshot and several deltas.
async fn back_up_with_sidecar(home: &Path, seed: u64) -> EtcdState {
    let cluster = EtcdCluster::start(VERSION, 1, &EtcdOptions::new()).await;
    let mut load = Workload::new(seed);
    load.run(&cluster.members[0], 100).await;
    let stage = SidecarHarness::start_on(cluster, SidecarStore::local(home), &[]).await;
    stage.wait_until_settled().await;
    for _ in 0..3 {
        load.run(&stage.cluster.members[0], 100).await;
        stage.wait_until_stored().await;
    }
    EtcdState::read(&stage.cluster.members[0]).await
}

/// The same, made by etcdbrctl.
async fn back_up_with_etcdbrctl(home: &Path, seed: u64) -> EtcdState {
    let etcd = EtcdServer::start(VERSION, EtcdOptions::new()).await;
    let mut load = Workload::new(seed);
    load.run(&etcd, 100).await;
    let backup = RestorerBackup::local(home, PREFIX);
    let snapshotter = Etcdbrctl::new(home, PREFIX).start_snapshots(etcd.client_url());
    for _ in 0..3 {
        let written = load.run(&etcd, 100).await;
        wait_until_stored(&backup, written).await;
    }
    drop(snapshotter);
    EtcdState::read(&etcd).await
}

async fn wait_until_stored(backup: &RestorerBackup, revision: Revision) {
    let deadline = Instant::now() + TIMEOUT;
    let is_stored = || {
        let ranges = backup.restorable_ranges();
        ranges.iter().any(|(_, to)| *to >= revision)
    };
    while !is_stored() {
        assert!(
            Instant::now() < deadline,
            "etcdbrctl did not store {revision}: {:?}",
            backup.snapshot_names()
        );
        sleep(Duration::from_millis(200)).await;
    }
}

/// etcdbrctl restores this prefix to the keys of a state.
async fn assert_etcdbrctl_restores(home: &Path, prefix: &str, state: &EtcdState) {
    let data_dir = home.join(format!("{prefix}-restored-by-etcdbrctl"));
    Etcdbrctl::new(home, prefix).restore(&data_dir);
    let etcd = start_etcd_on(VERSION, &data_dir).await;
    assert_eq!(etcd.revision().await, state.revision, "{prefix}");
    let (found, expected) = (etcd.all_keys().await, state.keys.clone());
    assert_same_keys(&without_leases(found), &without_leases(expected), prefix);
}

/// The restorer restores this prefix to a state with the same HashKV.
async fn assert_restorer_restores(home: &Path, prefix: &str, state: &EtcdState) {
    let backup = RestorerBackup::local(home, prefix);
    assert_eq!(backup.verify(), state.revision, "{prefix}");
    let data_dir = home.join(format!("{prefix}-restored-by-us"));
    backup.restore(&data_dir, &[]);
    let etcd = start_etcd_on(VERSION, &data_dir).await;
    state.assert_restored(&etcd, prefix).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdbrctl_restores_and_copies_a_backup_of_the_sidecar() {
    let home = TempDir::new().unwrap();
    let state = back_up_with_sidecar(home.path(), 71).await;
    assert_etcdbrctl_restores(home.path(), PREFIX, &state).await;
    Etcdbrctl::new(home.path(), "copied").copy_from(PREFIX);
    assert_restorer_restores(home.path(), "copied", &state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_of_etcdbrctl_is_restored_with_the_same_hash_and_copied() {
    let home = TempDir::new().unwrap();
    let state = back_up_with_etcdbrctl(home.path(), 72).await;
    assert_restorer_restores(home.path(), PREFIX, &state).await;
    let copied = RestorerBackup::local(home.path(), "copied");
    let source = [
        format!("--source-store-container={}", RestorerBackup::CONTAINER),
        format!("--source-store-prefix={PREFIX}"),
    ];
    let run = copied.run("copy", &[&source[0], &source[1]]);
    assert_eq!(run.code, Some(0), "{run:#?}");
    assert_etcdbrctl_restores(home.path(), "copied", &state).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_restores_what_the_other_compacted() {
    let home = TempDir::new().unwrap();
    let state = back_up_with_sidecar(home.path(), 73).await;
    let fulls = |prefix: &str| {
        let names = RestorerBackup::local(home.path(), prefix).snapshot_names();
        names
            .iter()
            .filter(|name| name.starts_with("Full-"))
            .count()
    };
    for prefix in ["by-us", "by-etcdbrctl"] {
        Etcdbrctl::new(home.path(), prefix).copy_from(PREFIX);
        assert_eq!(fulls(prefix), 1, "{prefix}");
    }
    let run = RestorerBackup::local(home.path(), "by-us").run("compact", &[]);
    assert_eq!(run.code, Some(0), "{run:#?}");
    assert_eq!(fulls("by-us"), 2);
    assert_etcdbrctl_restores(home.path(), "by-us", &state).await;

    Etcdbrctl::new(home.path(), "by-etcdbrctl").compact();
    assert_eq!(fulls("by-etcdbrctl"), 2);
    let data_dir = home.path().join("restored");
    RestorerBackup::local(home.path(), "by-etcdbrctl").restore(&data_dir, &[]);
    let etcd = start_etcd_on(VERSION, &data_dir).await;
    assert_eq!(etcd.revision().await, state.revision);
    let found = without_leases(etcd.all_keys().await);
    assert_same_keys(
        &found,
        &without_leases(state.keys),
        "compacted by etcdbrctl",
    );
}
