//! Provider `S3`, and `ECS` and `OCS` by the same client, against `SeaweedFS`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use mainstay_store::{
    Class, Environment, OpenError, Provider, SnapStore, StoreConfig, UploadOptions,
};

use crate::conformance;
use crate::data::{MIB, assert_same, assert_tried_once, brisk, download, keys, noise, put, upload};
use crate::servers::{Access, Weed};

/// Credentials as a mounted secret: one file per field.
pub(crate) fn secret_directory(parent: &Path, fields: &[(&str, &str)]) -> String {
    let directory = parent.join("credentials");
    fs::create_dir_all(&directory).unwrap();
    for (name, value) in fields {
        fs::write(directory.join(name), format!("{value}\n")).unwrap();
    }
    directory.to_str().unwrap().to_owned()
}

/// A store at `endpoint`, which is the server or a proxy in front of it.
pub(crate) fn open(weed: &Weed, endpoint: &str) -> SnapStore {
    let config = StoreConfig {
        endpoint: Some(endpoint.parse().unwrap()),
        effort: brisk(),
        ..StoreConfig::new(Provider::S3, Weed::BUCKET)
    };
    SnapStore::open(&config, &environment(weed)).unwrap()
}

pub(crate) fn environment(weed: &Weed) -> Environment {
    let fields = [
        ("region", "us-east-1"),
        ("accessKeyID", Weed::KEY_ID),
        ("secretAccessKey", Weed::SECRET),
    ];
    let directory = secret_directory(weed.server.directory.path(), &fields);
    Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)])
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_server_keeps_every_promise() {
    let weed = Weed::start(Access::Keys).await;
    let store = open(&weed, &weed.endpoint);
    conformance::all(&store).await;
    listings_go_beyond_one_page(&store).await;
    no_parts_of_abandoned_uploads_remain(&weed).await;
}

async fn listings_go_beyond_one_page(store: &SnapStore) {
    let puts = stream::iter(0..1_003).map(|number| {
        let key = format!("page/v2/Incr-{number:08}");
        async move {
            upload(store, &key, &noise(1, 1), UploadOptions::default())
                .await
                .map(|_| key)
        }
    });
    let mut expected: Vec<String> = puts.buffer_unordered(16).try_collect().await.unwrap();
    expected.sort();
    assert_eq!(keys(store, "page/v2").await, expected);
}

/// Uploads that were aborted or dropped by the conformance run are gone from the server too.
async fn no_parts_of_abandoned_uploads_remain(weed: &Weed) {
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let left = weed.unfinished_uploads().await;
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
async fn appliances_are_reached_by_the_same_client() {
    let weed = Weed::start(Access::Keys).await;
    let host = weed.endpoint.strip_prefix("http://").unwrap();
    let ecs = Environment::from_iter([
        ("ECS_ENDPOINT", host),
        ("ECS_ACCESS_KEY_ID", Weed::KEY_ID),
        ("ECS_SECRET_ACCESS_KEY", Weed::SECRET),
        ("ECS_DISABLE_SSL", "true"),
    ]);
    let file = weed.server.directory.path().join("ocs.json");
    let fields = serde_json::json!({
        "endpoint": host, "region": "us-east-1", "disableSSL": true,
        "accessKeyID": Weed::KEY_ID, "secretAccessKey": Weed::SECRET,
    });
    fs::write(&file, fields.to_string()).unwrap();
    let ocs = Environment::from_iter([(
        "OPENSHIFT_APPLICATION_CREDENTIALS_JSON",
        file.to_str().unwrap(),
    )]);
    for (provider, env) in [(Provider::Ecs, ecs), (Provider::Ocs, ocs)] {
        let store = SnapStore::open(&StoreConfig::new(provider, Weed::BUCKET), &env).unwrap();
        let (key, bytes) = (format!("{provider}/v2/Full-1"), noise(2, 6 * MIB));
        upload(&store, &key, &bytes, UploadOptions::create_only())
            .await
            .unwrap();
        assert_same(&download(&store, &key).await.unwrap(), &bytes);
        let small = upload(&store, &key, &noise(3, 3), UploadOptions::create_only()).await;
        assert_eq!(small.unwrap_err().class(), Class::Exists);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_denied_without_retries() {
    let weed = Weed::start(Access::Keys).await;
    let fields = [
        ("region", "us-east-1"),
        ("accessKeyID", Weed::KEY_ID),
        ("secretAccessKey", "wrong-secret"),
    ];
    let directory = secret_directory(weed.server.directory.path(), &fields);
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)]);
    let config = StoreConfig {
        endpoint: Some(weed.endpoint.parse().unwrap()),
        ..StoreConfig::new(Provider::S3, Weed::BUCKET)
    };
    let store = SnapStore::open(&config, &env).unwrap();
    let error = store.list("v2").await.unwrap_err();
    assert_eq!(error.class(), Class::Denied, "{error:?}");
    assert_tried_once(&error);
    let upload = store
        .upload("v2/Full-1", UploadOptions::create_only())
        .unwrap();
    let error = upload.finish().await.unwrap_err();
    assert_eq!(error.class(), Class::Denied, "{error:?}");
    assert_tried_once(&error);
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_credential_files_are_noticed_and_used() {
    let weed = Weed::start(Access::Keys).await;
    let fields = [
        ("region", "us-east-1"),
        ("accessKeyID", "OLD"),
        ("secretAccessKey", "old-secret"),
    ];
    let directory = secret_directory(weed.server.directory.path(), &fields);
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)]);
    let config = StoreConfig {
        endpoint: Some(weed.endpoint.parse().unwrap()),
        ..StoreConfig::new(Provider::S3, Weed::BUCKET)
    };
    let old = SnapStore::open(&config, &env).unwrap();
    assert_eq!(old.fingerprint().file_count(), 3);
    assert!(!old.credentials_changed());
    assert_eq!(old.list("v2").await.unwrap_err().class(), Class::Denied);

    environment(&weed);
    assert!(old.credentials_changed());
    let new = old.reopen().unwrap();
    assert!(!new.credentials_changed());
    put(&new, "v2/Full-1", &noise(4, 4)).await;
    assert_eq!(keys(&new, "v2").await, ["v2/Full-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_is_an_answer_not_an_outage() {
    let weed = Weed::start(Access::Keys).await;
    let config = StoreConfig {
        endpoint: Some(weed.endpoint.parse().unwrap()),
        ..StoreConfig::new(Provider::S3, "no-such-bucket")
    };
    let store = SnapStore::open(&config, &environment(&weed)).unwrap();
    let error = store.list("v2").await.unwrap_err();
    assert_tried_once(&error);
    assert_eq!(error.class(), Class::NotFound, "{error:?}");
    assert!(error.to_string().contains("no-such-bucket"), "{error}");
}

#[test]
fn swift_is_refused_with_a_way_out() {
    let config = StoreConfig::new(Provider::Swift, "backups");
    let error = SnapStore::open(&config, &Environment::default()).unwrap_err();
    assert!(matches!(error, OpenError::Unsupported { .. }), "{error:?}");
    assert!(
        error.to_string().contains("--storage-provider S3"),
        "{error}"
    );
}
