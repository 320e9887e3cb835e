//! Providers `S3`, `ECS` and `OCS`, which share a client, against `SeaweedFS`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use mainstay_store::{
    Environment, ErrorClass, SnapStore, StorageProvider, StoreConfig, StoreOpenError, UploadOptions,
};

use crate::conformance;
use crate::data::{
    MIB, assert_same_bytes, assert_tried_once, download, list_keys, put_object, random_bytes,
    test_transfer_config, upload,
};
use crate::servers::{Access, SeaweedFs};

/// Credentials as a mounted Secret: one file per field.
pub(crate) fn write_secret_directory(parent: &Path, fields: &[(&str, &str)]) -> String {
    let directory = parent.join("credentials");
    fs::create_dir_all(&directory).unwrap();
    for (name, value) in fields {
        fs::write(directory.join(name), format!("{value}\n")).unwrap();
    }
    directory.to_str().unwrap().to_owned()
}

/// A store at `endpoint`, which is the server's or a proxy's.
pub(crate) fn open_store(weed: &SeaweedFs, endpoint: &str) -> SnapStore {
    let config = StoreConfig {
        endpoint: Some(endpoint.parse().unwrap()),
        transfer: test_transfer_config(),
        ..StoreConfig::new(StorageProvider::S3, SeaweedFs::BUCKET)
    };
    SnapStore::open(&config, &write_environment(weed)).unwrap()
}

pub(crate) fn write_environment(weed: &SeaweedFs) -> Environment {
    let fields = [
        ("region", "us-east-1"),
        ("accessKeyID", SeaweedFs::KEY_ID),
        ("secretAccessKey", SeaweedFs::SECRET),
    ];
    let directory = write_secret_directory(weed.server.directory.path(), &fields);
    Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)])
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_server_passes_the_conformance_tests() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let store = open_store(&weed, &weed.endpoint);
    conformance::run_all(&store).await;
    listing_spans_multiple_pages(&store).await;
    assert_no_abandoned_parts(&weed).await;
}

async fn listing_spans_multiple_pages(store: &SnapStore) {
    let puts = stream::iter(0..1_003).map(|number| {
        let key = format!("page/v2/Incr-{number:08}");
        async move {
            upload(store, &key, &random_bytes(1, 1), UploadOptions::default())
                .await
                .map(|_| key)
        }
    });
    let mut expected: Vec<String> = puts.buffer_unordered(16).try_collect().await.unwrap();
    expected.sort();
    assert_eq!(list_keys(store, "page/v2").await, expected);
}

/// Asserts that the server removed the parts of aborted and dropped uploads.
async fn assert_no_abandoned_parts(weed: &SeaweedFs) {
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let left = weed.list_unfinished_uploads().await;
        if left.is_empty() {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "parts of abandoned uploads remain: {left:?}"
        );
        // Dropped uploads are aborted in the background.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ecs_and_ocs_use_the_s3_client() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let host = weed.endpoint.strip_prefix("http://").unwrap();
    let ecs = Environment::from_iter([
        ("ECS_ENDPOINT", host),
        ("ECS_ACCESS_KEY_ID", SeaweedFs::KEY_ID),
        ("ECS_SECRET_ACCESS_KEY", SeaweedFs::SECRET),
        ("ECS_DISABLE_SSL", "true"),
    ]);
    let file = weed.server.directory.path().join("ocs.json");
    let fields = serde_json::json!({
        "endpoint": host, "region": "us-east-1", "disableSSL": true,
        "accessKeyID": SeaweedFs::KEY_ID, "secretAccessKey": SeaweedFs::SECRET,
    });
    fs::write(&file, fields.to_string()).unwrap();
    let ocs = Environment::from_iter([(
        "OPENSHIFT_APPLICATION_CREDENTIALS_JSON",
        file.to_str().unwrap(),
    )]);
    for (provider, env) in [(StorageProvider::Ecs, ecs), (StorageProvider::Ocs, ocs)] {
        let store = SnapStore::open(&StoreConfig::new(provider, SeaweedFs::BUCKET), &env).unwrap();
        let (key, bytes) = (format!("{provider}/v2/Full-1"), random_bytes(2, 6 * MIB));
        upload(&store, &key, &bytes, UploadOptions::create_only())
            .await
            .unwrap();
        assert_same_bytes(&download(&store, &key).await.unwrap(), &bytes);
        let small = upload(
            &store,
            &key,
            &random_bytes(3, 3),
            UploadOptions::create_only(),
        )
        .await;
        assert_eq!(small.unwrap_err().class(), ErrorClass::Exists);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_denied_without_retries() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let fields = [
        ("region", "us-east-1"),
        ("accessKeyID", SeaweedFs::KEY_ID),
        ("secretAccessKey", "wrong-secret"),
    ];
    let directory = write_secret_directory(weed.server.directory.path(), &fields);
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)]);
    let config = StoreConfig {
        endpoint: Some(weed.endpoint.parse().unwrap()),
        ..StoreConfig::new(StorageProvider::S3, SeaweedFs::BUCKET)
    };
    let store = SnapStore::open(&config, &env).unwrap();
    let error = store.list("v2").await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Denied, "{error:?}");
    assert_tried_once(&error);
    let upload = store
        .upload("v2/Full-1", UploadOptions::create_only())
        .unwrap();
    let error = upload.finish().await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Denied, "{error:?}");
    assert_tried_once(&error);
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_credential_files_are_detected_and_used() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let fields = [
        ("region", "us-east-1"),
        ("accessKeyID", "OLD"),
        ("secretAccessKey", "old-secret"),
    ];
    let directory = write_secret_directory(weed.server.directory.path(), &fields);
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)]);
    let config = StoreConfig {
        endpoint: Some(weed.endpoint.parse().unwrap()),
        ..StoreConfig::new(StorageProvider::S3, SeaweedFs::BUCKET)
    };
    let old = SnapStore::open(&config, &env).unwrap();
    assert_eq!(old.credential_fingerprint().file_count(), 3);
    assert!(!old.has_changed_credentials());
    assert_eq!(
        old.list("v2").await.unwrap_err().class(),
        ErrorClass::Denied
    );

    write_environment(&weed);
    assert!(old.has_changed_credentials());
    let new = old.reopen().unwrap();
    assert!(!new.has_changed_credentials());
    put_object(&new, "v2/Full-1", &random_bytes(4, 4)).await;
    assert_eq!(list_keys(&new, "v2").await, ["v2/Full-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_bucket_is_not_found_and_not_retried() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let config = StoreConfig {
        endpoint: Some(weed.endpoint.parse().unwrap()),
        ..StoreConfig::new(StorageProvider::S3, "no-such-bucket")
    };
    let store = SnapStore::open(&config, &write_environment(&weed)).unwrap();
    let error = store.list("v2").await.unwrap_err();
    assert_tried_once(&error);
    assert_eq!(error.class(), ErrorClass::NotFound, "{error:?}");
    assert!(error.to_string().contains("no-such-bucket"), "{error}");
}

#[test]
fn swift_is_refused_with_an_alternative() {
    let config = StoreConfig::new(StorageProvider::Swift, "backups");
    let error = SnapStore::open(&config, &Environment::default()).unwrap_err();
    assert!(
        matches!(error, StoreOpenError::Unsupported { .. }),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("--storage-provider S3"),
        "{error}"
    );
}
