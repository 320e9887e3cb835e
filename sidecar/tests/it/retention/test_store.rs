//! A store with small intact and damaged objects under chosen names.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_archive::compression::Compression;
use mainstay_archive::delta::{DeltaWriter, Event, EventKind};
use mainstay_archive::layout::object_key;
use mainstay_archive::name::SnapshotName;
use mainstay_ids::{LeaseId, Revision};
use mainstay_store::{Environment, SnapStore, StorageProvider, StoreConfig, UploadOptions};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// Default time of a round: objects are minutes old, and their hour is not the first of the day.
pub(crate) const NOW: i64 = 1_794_825_000;
const PREFIX: &str = "etcd-main";

/// A store, and its directory if it is local.
pub(crate) struct TestStore {
    pub(crate) store: SnapStore,
    directory: Option<TempDir>,
}

impl TestStore {
    pub(crate) fn open_local() -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = StoreConfig {
            prefix: PREFIX.to_owned(),
            ..StoreConfig::new(StorageProvider::Local, "bucket")
        };
        let env = Environment::from_iter([("HOME", home.path().to_str().unwrap())]);
        Self {
            store: SnapStore::open(&config, &env).unwrap(),
            directory: Some(home),
        }
    }

    pub(crate) fn open_remote(config: StoreConfig, env: &Environment) -> Self {
        let config = StoreConfig {
            prefix: PREFIX.to_owned(),
            ..config
        };
        Self {
            store: SnapStore::open(&config, env).unwrap(),
            directory: None,
        }
    }

    /// A full snapshot with a valid hash and arbitrary content, created one hour before `NOW` plus `minute` minutes.
    pub(crate) async fn put_full(&self, last: i64, minute: i64) -> String {
        let mut bytes: Vec<u8> = (0..300 * 512)
            .map(|at| u8::try_from(at % 251).unwrap())
            .collect();
        let hash = Sha256::digest(&bytes);
        bytes.extend_from_slice(hash.as_slice());
        self.put_named(&build_full_name(last, minute), bytes).await
    }

    pub(crate) async fn put_damaged_full(&self, last: i64, minute: i64) -> String {
        self.put_named(&build_full_name(last, minute), vec![7; 300 * 512 + 32])
            .await
    }

    pub(crate) async fn put_delta(&self, start: i64, last: i64, minute: i64) -> String {
        let events: Vec<i64> = (start..=last).collect();
        self.put_named(
            &build_delta_name(start, last, minute),
            encode_delta(&events),
        )
        .await
    }

    /// A delta with a valid hash that lacks a revision.
    pub(crate) async fn put_delta_with_gap(&self, start: i64, last: i64, minute: i64) -> String {
        let events: Vec<i64> = (start..=last)
            .filter(|revision| *revision != start + 1)
            .collect();
        self.put_named(
            &build_delta_name(start, last, minute),
            encode_delta(&events),
        )
        .await
    }

    /// An uploaded part of a full snapshot that does not exist.
    pub(crate) async fn put_part(&self, last: i64, minute: i64) -> String {
        let key = format!(
            "{}/0000000001",
            object_key(PREFIX, &build_full_name(last, minute))
        );
        self.put_object(&key, vec![1; 100]).await;
        key
    }

    pub(crate) async fn list_keys(&self) -> Vec<String> {
        let objects = self.store.list(PREFIX).await.unwrap();
        objects.into_iter().map(|object| object.key).collect()
    }

    /// Changes a byte, but neither size nor modification time.
    pub(crate) fn damage_in_place(&self, name: &str) {
        let path = self.find_file(name);
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes[1000] ^= 1;
        fs::write(&path, bytes).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(modified)
            .unwrap();
    }

    /// Sets the modification time of the file.
    pub(crate) fn set_modified(&self, name: &str, modified: Timestamp) {
        let file = File::options()
            .write(true)
            .open(self.find_file(name))
            .unwrap();
        file.set_modified(modified.into()).unwrap();
    }

    /// The file whose name starts with `name`.
    fn find_file(&self, name: &str) -> PathBuf {
        let home = self.directory.as_ref().expect("a local store");
        find_under(home.path(), name).unwrap_or_else(|| panic!("no file {name}"))
    }

    async fn put_named(&self, name: &SnapshotName, bytes: Vec<u8>) -> String {
        let key = object_key(PREFIX, name);
        self.put_object(&key, bytes).await;
        key
    }

    async fn put_object(&self, key: &str, bytes: Vec<u8>) {
        let mut upload = self
            .store
            .upload(key, UploadOptions::create_only())
            .unwrap();
        upload.write(Bytes::from(bytes)).await.unwrap();
        upload.finish().await.unwrap();
    }
}

fn created_at(minute: i64) -> i64 {
    NOW - 3600 + minute * 60
}

fn build_full_name(last: i64, minute: i64) -> SnapshotName {
    SnapshotName::full(Revision(last), created_at(minute), Compression::None)
}

fn build_delta_name(start: i64, last: i64, minute: i64) -> SnapshotName {
    let (start, last) = (Revision(start), Revision(last));
    SnapshotName::delta(start, last, created_at(minute), Compression::None)
}

fn encode_delta(revisions: &[i64]) -> Vec<u8> {
    let mut writer = DeltaWriter::new(Vec::new());
    for revision in revisions {
        let event = Event {
            kind: EventKind::Put,
            key: b"key",
            value: b"value",
            create_revision: Revision(*revision),
            mod_revision: Revision(*revision),
            version: 1,
            lease: LeaseId::NONE,
            lease_ttl: None,
            time: "2026-11-16T09:30:00Z",
        };
        writer.write_event(&event).unwrap();
    }
    writer.finish().unwrap()
}

fn find_under(below: &Path, name: &str) -> Option<PathBuf> {
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        let is_match = path
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with(name));
        if path.is_dir() {
            if let Some(found) = find_under(&path, name) {
                return Some(found);
            }
        } else if is_match {
            return Some(path);
        }
    }
    None
}
