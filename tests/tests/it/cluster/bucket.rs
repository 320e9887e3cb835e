//! Access of tests to the bucket of all backups.

use std::fs;

use mainstay_store::{Environment, SnapStore, StorageProvider, StoreConfig};
use mainstay_tests::cluster::managed_etcd::store_url;
use mainstay_tests::cluster::{BUCKET, S3_KEY_ID, S3_SECRET};
use tempfile::TempDir;

/// The opened bucket.
pub(crate) struct BackupBucket {
    pub(crate) store: SnapStore,
    /// Kept, because the store reads the credential files again when they change.
    _credentials: TempDir,
}

impl BackupBucket {
    pub(crate) fn open() -> Self {
        let credentials = tempfile::tempdir().unwrap();
        let fields = [
            ("region", "us-east-1"),
            ("accessKeyID", S3_KEY_ID),
            ("secretAccessKey", S3_SECRET),
        ];
        for (name, value) in fields {
            fs::write(credentials.path().join(name), value).unwrap();
        }
        let place = credentials.path().to_str().unwrap();
        let environment = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", place)]);
        let config = StoreConfig {
            endpoint: Some(store_url().parse().unwrap()),
            ..StoreConfig::new(StorageProvider::S3, BUCKET)
        };
        Self {
            store: SnapStore::open(&config, &environment).unwrap(),
            _credentials: credentials,
        }
    }

    /// Keys of all snapshots below a prefix, by name.
    pub(crate) async fn list_snapshots(&self, prefix: &str) -> Vec<String> {
        let listed = self.store.list(&format!("{prefix}/v2")).await.unwrap();
        listed.into_iter().map(|object| object.key).collect()
    }
}
