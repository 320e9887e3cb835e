//! Restores and compacts backups in real object stores.

use mainstay_store::{Environment, SnapStore, StorageProvider, StoreConfig, UploadOptions};
use mainstay_testkit::EtcdRelease;
use tempfile::TempDir;

use crate::servers::{Azurite, GcsProxy, SeaweedFs};
use crate::support::{Fixture, RestorerBackup, assert_same_keys, start_etcd_on};

const PREFIX: &str = "etcd-main";
const VERSION: EtcdRelease = EtcdRelease::NEWEST;

/// A bucket of a running server, for the test and for the restorer.
struct StoreBucket {
    store: SnapStore,
    backup: RestorerBackup,
}

impl StoreBucket {
    /// A bucket at an endpoint, with variables for the credentials.
    fn open(
        provider: StorageProvider,
        container: &str,
        endpoint: &str,
        variable: Option<(&str, &str)>,
    ) -> Self {
        let config = StoreConfig {
            endpoint: Some(endpoint.parse().unwrap()),
            ..StoreConfig::new(provider, container)
        };
        let environment = Environment::from_iter(variable);
        let home = std::env::temp_dir();
        let mut backup =
            RestorerBackup::remote(&home, &provider.to_string(), (container, PREFIX), endpoint);
        if let Some((name, value)) = variable {
            backup = backup.with_variable(name, value);
        }
        Self {
            store: SnapStore::open(&config, &environment).unwrap(),
            backup,
        }
    }

    async fn upload_fixture(&self, fixture: &Fixture) {
        for (key, content) in fixture.objects() {
            let mut upload = self
                .store
                .upload(&key, UploadOptions::create_only())
                .unwrap();
            upload.write(content.into()).await.unwrap();
            upload.finish().await.unwrap();
        }
    }

    /// Restores the fixture from the server.
    async fn assert_restores(&self, fixture: &Fixture) {
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        self.backup.restore(&data_dir, &[]);
        let etcd = start_etcd_on(VERSION, &data_dir).await;
        fixture.state.assert_restored(&etcd, "from the store").await;
    }

    /// Compacts in the store; the new snapshot must have the same keys.
    async fn assert_compacts(&self, fixture: &Fixture) {
        let report = self.backup.run("compact", &[]).expect_success("compacted");
        assert_eq!(report["revision"], fixture.state.revision.0, "{report:#}");
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        let snapshot = report["snapshot"].as_str().unwrap();
        let report = self.backup.restore(&data_dir, &["--from", snapshot]);
        assert_eq!(report["deltas"], 0, "{report:#}");
        let etcd = start_etcd_on(VERSION, &data_dir).await;
        assert_eq!(etcd.revision().await, fixture.state.revision);
        assert_same_keys(
            &etcd.all_keys().await,
            &fixture.state.keys,
            "compacted in the store",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_backup_is_restored_and_compacted() {
    let fixture = Fixture::open("gzip-3.5.30");
    let weed = SeaweedFs::start().await;
    let credentials = weed.credentials();
    let variable = ("AWS_APPLICATION_CREDENTIALS", credentials.as_str());
    let bucket = StoreBucket::open(
        StorageProvider::S3,
        SeaweedFs::BUCKET,
        &weed.endpoint,
        Some(variable),
    );
    bucket.upload_fixture(&fixture).await;
    bucket.assert_restores(&fixture).await;
    bucket.assert_compacts(&fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn azure_blob_storage_backup_is_restored_and_compacted() {
    let fixture = Fixture::open("zlib-3.5.16");
    let azurite = Azurite::start().await;
    let credentials = azurite.credentials();
    let variable = ("AZURE_APPLICATION_CREDENTIALS_JSON", credentials.as_str());
    let bucket = StoreBucket::open(
        StorageProvider::Abs,
        Azurite::CONTAINER,
        &azurite.endpoint,
        Some(variable),
    );
    bucket.upload_fixture(&fixture).await;
    bucket.assert_restores(&fixture).await;
    bucket.assert_compacts(&fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gcs_backup_is_restored_and_compacted() {
    let fixture = Fixture::open("overlap-3.5.30");
    let weed = SeaweedFs::start_open().await;
    let front = GcsProxy::start(&weed.endpoint).await;
    let bucket = StoreBucket::open(
        StorageProvider::Gcs,
        SeaweedFs::BUCKET,
        &front.endpoint,
        None,
    );
    bucket.upload_fixture(&fixture).await;
    bucket.assert_restores(&fixture).await;
    bucket.assert_compacts(&fixture).await;
}

/// An empty bucket and an unavailable server result in different verdicts.
#[tokio::test(flavor = "multi_thread")]
async fn empty_bucket_and_unavailable_store_are_refused_differently() {
    let weed = SeaweedFs::start().await;
    let directory = TempDir::new().unwrap();
    let data_dir = directory.path().join("data");
    let into = ["--data-dir", data_dir.to_str().unwrap()];
    let credentials = weed.credentials();
    let variable = ("AWS_APPLICATION_CREDENTIALS", credentials.as_str());
    let bucket = StoreBucket::open(
        StorageProvider::S3,
        SeaweedFs::BUCKET,
        &weed.endpoint,
        Some(variable),
    );
    bucket
        .backup
        .run("restore", &into)
        .expect_refused("no-backup", 20);
    let impatient = [&into[..], &["--store-retry-timeout", "1s"]].concat();
    let nowhere = mainstay_testkit::etcd::free_url();
    let bucket = StoreBucket::open(
        StorageProvider::S3,
        SeaweedFs::BUCKET,
        &nowhere,
        Some(variable),
    );
    bucket
        .backup
        .run("restore", &impatient)
        .expect_refused("store-unavailable", 23);
    assert!(!data_dir.exists());
}
