//! The sidecar writes the format of etcd-backup-restore, and continues its backups.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use mainstay_testkit::recorder::RecorderCompression;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdRelease, Recorder, Workload, each_version};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::sidecar_store::PREFIX;
use super::{SidecarHarness, SidecarStore};
use crate::support::{Fixture, RestorerBackup};

/// Objects of a bucket, sorted by name.
fn list_objects(bucket: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(bucket.join(PREFIX).join("v2")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(kind)
    });
    paths.sort();
    paths
}

/// The content of an object, without the required trailing hash.
fn read_object(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut decoder = GzDecoder::new(fs::File::open(path).unwrap());
    decoder.read_to_end(&mut bytes).unwrap();
    let hash = bytes.split_off(bytes.len() - 32);
    assert_eq!(
        Sha256::digest(&bytes).as_slice(),
        hash,
        "{}",
        path.display()
    );
    bytes
}

/// All events of some deltas, without fields that differ between two watchers.
fn read_events(paths: &[PathBuf]) -> Vec<Value> {
    let deltas = paths.iter().map(|path| {
        let text = read_object(path);
        assert!(text.starts_with(b"[{\"etcdEvent\":{"), "{}", path.display());
        serde_json::from_slice::<Vec<Value>>(&text).unwrap()
    });
    let mut events: Vec<Value> = deltas.flatten().collect();
    for event in &mut events {
        let event = event.as_object_mut().unwrap();
        let time = event.remove("time").unwrap();
        time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        event.retain(|field, _| field == "etcdEvent");
    }
    events
}

each_version! {
    async fn objects_equal_those_of_etcd_backup_restore(version) {
        let cluster = EtcdCluster::start(version, 1, &EtcdOptions::new()).await;
        let etcd = &cluster.members[0];
        let mut load = Workload::new(61);
        load.run(etcd, 100).await;
        let theirs = TempDir::new().unwrap();
        let bucket = RestorerBackup::container_dir(&theirs);
        let mut recorder = Recorder::start(etcd, &bucket, PREFIX, RecorderCompression::Gzip).await;
        let ours = TempDir::new().unwrap();
        let stage = SidecarHarness::start_on(cluster, SidecarStore::local(ours.path()), &[]).await;
        stage.wait_until_settled().await;
        stage.wait_until_stored().await;
        for _ in 0..3 {
            load.run(&stage.cluster.members[0], 150).await;
            recorder.write_delta(&stage.cluster.members[0]).await.unwrap();
            stage.wait_until_stored().await;
        }
        let container = RestorerBackup::container_dir(&ours);
        for kind in ["Full", "Incr"] {
            for path in list_objects(&container, kind) {
                assert_well_named(path.file_name().unwrap().to_str().unwrap());
            }
        }
        let found = read_events(&list_objects(&container, "Incr"));
        let expected = read_events(&list_objects(&bucket, "Incr"));
        let first = found.first().unwrap();
        let start = expected.iter().position(|event| event == first).unwrap();
        assert_eq!(found, expected[start..]);
        let database = read_object(&list_objects(&container, "Full")[0]);
        assert_eq!(database.len() % 4096, 0, "a full snapshot is a database file");
    }
}

/// `Full-00000000-<last>-<unix>.gz`, `Incr-<first>-<last>-<unix>.gz`, revisions with eight digits or more.
fn assert_well_named(name: &str) {
    let fields: Vec<&str> = name.strip_suffix(".gz").unwrap().split('-').collect();
    let [kind, first, last, unix] = fields[..] else {
        panic!("{name}");
    };
    let revisions = [first, last].map(|text| (text.len(), text.parse::<i64>().unwrap()));
    assert!(revisions.iter().all(|(digits, _)| *digits == 8), "{name}");
    let is_full = kind == "Full";
    assert_eq!(is_full, revisions[0].1 == 0, "{name}");
    assert!(is_full || revisions[0].1 <= revisions[1].1, "{name}");
    assert_eq!(unix.len(), 10, "{name}");
}

/// A bucket of etcd-backup-restore is restored, started, and continued by the sidecar.
async fn assert_continues(fixture: &str, version: EtcdRelease) {
    let fixture = Fixture::open(fixture);
    let home = TempDir::new().unwrap();
    let container = RestorerBackup::container_dir(&home);
    for (key, content) in fixture.objects() {
        let path = container.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let place = SidecarStore::local(home.path());
    let peers = place.backup.snapshot_names();
    let data_dir = home.path().join("restored");
    place.backup.restore(&data_dir, &[]);
    let options = EtcdOptions::new().data_dir(&data_dir);
    let etcd = mainstay_testkit::EtcdServer::start(version, options).await;
    let stage = SidecarHarness::start_on(EtcdCluster::from_members(vec![etcd]), place, &[]).await;
    stage.wait_until_settled().await;
    let mut load = Workload::new(62);
    load.run(&stage.cluster.members[0], 200).await;
    stage.wait_until_stored().await;
    assert_eq!(stage.assert_restores("continued").await, load.revision());
    let names = stage.backup().snapshot_names();
    assert!(peers.iter().all(|name| names.contains(name)), "{names:?}");
    let after = format!("Incr-{:08}-", fixture.state.revision.next().0);
    assert!(
        names.iter().any(|name| name.starts_with(&after)),
        "{after}: {names:?}"
    );
    assert_eq!(stage.backup().restorable_ranges().len(), 1, "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bucket_of_etcd_backup_restore_is_continued() {
    assert_continues("gzip-3.5.30", EtcdRelease::V3_5New).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_upstream_bucket_is_continued_with_another_compression() {
    assert_continues("none-3.4.23", EtcdRelease::V3_4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bucket_with_two_concurrent_upstream_writers_is_continued() {
    assert_continues("overlap-3.5.30", EtcdRelease::V3_5New).await;
}
