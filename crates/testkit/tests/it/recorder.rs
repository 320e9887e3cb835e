//! A recorded backup restores the source, read by independent code.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use flate2::read::{GzDecoder, ZlibDecoder};
use mainstay_ids::{LeaseId, Revision};
use mainstay_testkit::recorder::{RecordedObject, RecorderCompression};
use mainstay_testkit::{
    EtcdOptions, EtcdRelease, EtcdServer, Kv, Recorder, Workload, each_version,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

each_version! {
    async fn base_and_deltas_reproduce_the_source(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut load = Workload::new(21).with_compactions();
        load.run(&etcd, 200).await;
        let bucket = TempDir::new().unwrap();
        let mut recorder =
            Recorder::start(&etcd, bucket.path(), "etcd-main", RecorderCompression::Gzip).await;
        let base = recorder.last_revision();
        let mut keys = index_by_key(etcd.all_keys_at(base).await);
        let mut next = base.next();
        for compression in [RecorderCompression::Gzip, RecorderCompression::Zlib, RecorderCompression::None] {
            recorder.set_compression(compression);
            load.run(&etcd, 200).await;
            let delta = recorder.write_delta(&etcd).await.unwrap();
            assert_eq!(delta.start_revision, next);
            next = delta.last_revision.next();
            replay_delta(&delta, &mut keys);
        }
        assert_eq!(recorder.last_revision(), load.revision());
        assert_eq!(keys.into_values().collect::<Vec<_>>(), etcd.all_keys().await);
    }

    async fn the_base_is_a_snapshot_the_tool_restores(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        Workload::new(22).run(&etcd, 100).await;
        let bucket = TempDir::new().unwrap();
        let recorder = Recorder::start(&etcd, bucket.path(), "a/b", RecorderCompression::Gzip).await;
        let base = find_only_file(recorder.folder());
        assert_eq!(recorder.folder(), bucket.path().join("a/b/v2"));
        let database = bucket.path().join("db");
        fs::write(&database, decompress(&base)).unwrap();
        let restored = bucket.path().join("restored");
        version.etcdutl([
            "snapshot", "restore", database.to_str().unwrap(), "--data-dir", restored.to_str().unwrap(),
        ]);
        let copy = EtcdServer::start(version, EtcdOptions::new().data_dir(restored)).await;
        assert_eq!(copy.all_keys().await, etcd.all_keys().await);
    }

    async fn a_huge_transaction_is_whole_in_one_delta(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new().huge_transactions()).await;
        let bucket = TempDir::new().unwrap();
        let mut recorder = Recorder::start(&etcd, bucket.path(), "p", RecorderCompression::None).await;
        Workload::new(23).run_huge_transaction(&etcd, 10_000, 64 << 20).await;
        let delta = recorder.write_delta(&etcd).await.unwrap();
        // The deletes of the first huge transaction match no keys.
        assert_eq!((delta.start_revision, delta.last_revision, delta.events), (Revision(2), Revision(2), 9_000));
    }
}

#[tokio::test]
async fn delta_ends_at_the_requested_revision() {
    let etcd = EtcdServer::start(EtcdRelease::NEWEST, EtcdOptions::new()).await;
    let bucket = TempDir::new().unwrap();
    let mut recorder = Recorder::start(&etcd, bucket.path(), "p", RecorderCompression::Gzip).await;
    assert_eq!(recorder.write_delta(&etcd).await, None);
    let reached = Workload::new(24).run(&etcd, 100).await;
    let first = recorder.write_delta_to(Revision(40)).await.unwrap();
    let second = recorder.write_delta(&etcd).await.unwrap();
    assert!(
        first.name().starts_with("Incr-00000002-00000040-"),
        "{}",
        first.name()
    );
    assert!(
        second
            .name()
            .starts_with(&format!("Incr-00000041-{:08}-", reached.0))
    );
    assert_eq!(recorder.write_delta(&etcd).await, None);
}

#[tokio::test]
async fn delta_starts_after_the_newest_full() {
    let etcd = EtcdServer::start(EtcdRelease::NEWEST, EtcdOptions::new()).await;
    let bucket = TempDir::new().unwrap();
    let mut recorder = Recorder::start(&etcd, bucket.path(), "p", RecorderCompression::Gzip).await;
    let mut load = Workload::new(25);
    load.run(&etcd, 50).await;
    let full = recorder.write_full(&etcd).await;
    assert_eq!(full.last_revision, load.revision());
    load.run(&etcd, 50).await;
    let delta = recorder.write_delta(&etcd).await.unwrap();
    assert_eq!(
        (delta.start_revision, delta.last_revision),
        (full.last_revision.next(), load.revision())
    );
}

fn index_by_key(keys: Vec<Kv>) -> BTreeMap<Vec<u8>, Kv> {
    keys.into_iter().map(|kv| (kv.key.clone(), kv)).collect()
}

/// The decompressed object.
fn decompress(path: &Path) -> Vec<u8> {
    let mut file = File::open(path).unwrap();
    let mut content = Vec::new();
    match path.extension().and_then(|suffix| suffix.to_str()) {
        Some("gz") => GzDecoder::new(file).read_to_end(&mut content),
        Some("zlib") => ZlibDecoder::new(file).read_to_end(&mut content),
        _ => file.read_to_end(&mut content),
    }
    .unwrap();
    content
}

fn replay_delta(delta: &RecordedObject, keys: &mut BTreeMap<Vec<u8>, Kv>) {
    let content = decompress(&delta.path);
    let (text, hash) = content.split_at(content.len() - 32);
    assert_eq!(Sha256::digest(text).as_slice(), hash);
    let events: Vec<Value> = serde_json::from_slice(text).unwrap();
    assert_eq!(events.len(), delta.events);
    for event in events {
        assert!(event["time"].as_str().unwrap().ends_with('Z'), "{event}");
        let kv = &event["etcdEvent"]["kv"];
        let number = |name: &str| kv[name].as_i64().unwrap_or(0);
        let bytes = |name: &str| {
            let text = kv[name].as_str().unwrap_or("");
            base64_simd::STANDARD.decode_to_vec(text).unwrap()
        };
        let key = bytes("key");
        if event["etcdEvent"]["type"] == 1 {
            keys.remove(&key).expect("a deleted key existed");
            continue;
        }
        let kv = Kv {
            key: key.clone(),
            value: bytes("value"),
            create_revision: Revision(number("create_revision")),
            mod_revision: Revision(number("mod_revision")),
            version: number("version"),
            lease: LeaseId::from_signed(number("lease")),
        };
        keys.insert(key, kv);
    }
}

fn find_only_file(folder: &Path) -> std::path::PathBuf {
    let files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let [file] = files.as_slice() else {
        panic!("expected one file, found {files:?}")
    };
    file.clone()
}
