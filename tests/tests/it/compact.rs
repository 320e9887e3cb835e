//! Compacting a backup chain into one full snapshot equals etcd's own compaction.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use mainstay_ids::Revision;
use mainstay_testkit::recorder::RecorderCompression;
use mainstay_testkit::{EtcdOptions, EtcdRelease, EtcdServer, Recorder, Workload, each_version};
use tempfile::TempDir;

use crate::support::{EtcdState, RestorerBackup, assert_same_keys, start_etcd_on};

const PREFIX: &str = "etcd-main";

/// Unpacks a full snapshot for etcd's own tool.
fn unpack_snapshot(object: &Path, parent: &Path) -> PathBuf {
    let path = parent.join("snapshot.db");
    let mut decoder = GzDecoder::new(File::open(object).unwrap());
    std::io::copy(&mut decoder, &mut File::create(&path).unwrap()).unwrap();
    path
}

/// Asserts that etcd's own tool accepts the object; returns its revision.
fn etcdutl_revision(version: EtcdRelease, snapshot: &Path) -> Revision {
    let status = version.etcdutl([
        "snapshot",
        "status",
        "-w",
        "json",
        snapshot.to_str().unwrap(),
    ]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    Revision(status["revision"].as_i64().unwrap())
}

each_version! {
    async fn compacted_chain_restores_like_a_compacted_etcd(version) {
        let seed = 20_260_505;
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut load = Workload::new(seed);
        let home = TempDir::new().unwrap();
        let container = RestorerBackup::container_dir(&home);
        let backup = RestorerBackup::local(home.path(), PREFIX);
        load.run(&etcd, 200).await;
        let mut recorder = Recorder::start(&etcd, &container, PREFIX, RecorderCompression::Gzip).await;
        for _ in 0..3 {
            load.run(&etcd, 200).await;
            recorder.write_delta(&etcd).await.unwrap();
        }
        // The last write is a put: versions of etcd differ in what they keep of a delete at the compacted revision.
        etcd.client().await.put("the-end", "", None).await.unwrap();
        recorder.write_delta(&etcd).await.unwrap();
        let then = EtcdState::read(&etcd).await;

        let report = backup.run("compact", &[]).expect_success("compacted");
        assert_eq!(report["revision"], then.revision.0, "{report:#}");
        assert_eq!(report["deltas"], 4, "{report:#}");
        assert_eq!(report["rowsKept"], then.keys.len(), "only live keys must be kept: {report:#}");
        let object = container.join(report["objectKey"].as_str().unwrap());
        let snapshot = unpack_snapshot(&object, home.path());
        for tool in version.newer_or_equal() {
            assert_eq!(etcdutl_revision(tool, &snapshot), then.revision);
        }

        // The backup continued meanwhile, and continues after the new snapshot.
        load.run(&etcd, 150).await;
        recorder.write_delta(&etcd).await.unwrap();
        assert_compacted_restore(&backup, &etcd, &then, &home).await;
    }
}

/// An etcd restored from the compacted snapshot equals its source compacted at that revision.
async fn assert_compacted_restore(
    backup: &RestorerBackup,
    source: &EtcdServer,
    then: &EtcdState,
    home: &TempDir,
) {
    let data_dir = home.path().join("folded");
    backup.restore_at(&data_dir, then.revision);
    let folded = start_etcd_on(source.version(), &data_dir).await;
    assert_eq!(folded.revision().await, then.revision);
    assert_same_keys(&folded.all_keys().await, &then.keys, "the compacted chain");

    let data_dir = home.path().join("continued");
    let report = backup.restore(&data_dir, &[]);
    assert_eq!(report["baseRevision"], then.revision.0, "{report:#}");
    let continued = start_etcd_on(source.version(), &data_dir).await;
    source.compact(then.revision).await;
    let now = EtcdState::read(source).await;
    assert_eq!(now.hash.compact_revision, Some(then.revision));
    // Already compacted, so the comparison does not compact it.
    assert_eq!(continued.hash_kv(now.revision).await, now.hash);
    now.assert_restored(&continued, "after the compacted snapshot")
        .await;
}

#[tokio::test]
async fn chain_without_deltas_is_not_compacted() {
    let etcd = EtcdServer::start(EtcdRelease::NEWEST, EtcdOptions::new()).await;
    let home = TempDir::new().unwrap();
    let container = RestorerBackup::container_dir(&home);
    Workload::new(1).run(&etcd, 20).await;
    let recorder = Recorder::start(&etcd, &container, PREFIX, RecorderCompression::Gzip).await;
    let backup = RestorerBackup::local(home.path(), PREFIX);
    backup.run("compact", &[]).expect_success("unchanged");
    assert_eq!(fs::read_dir(recorder.folder()).unwrap().count(), 1);
}
