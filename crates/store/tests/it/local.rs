//! Provider `Local`.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use mainstay_store::{
    Environment, ErrorClass, SnapStore, StorageProvider, StoreConfig, StoreOpenError, UploadOptions,
};
use tempfile::TempDir;

use crate::conformance;
use crate::data::{list_keys, put_object, random_bytes, test_transfer_config};

fn open_local_store() -> (TempDir, SnapStore) {
    let home = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        transfer: test_transfer_config(),
        ..StoreConfig::new(StorageProvider::Local, "default.bkp")
    };
    let env = Environment::from_iter([("HOME", home.path().to_str().unwrap())]);
    let store = SnapStore::open(&config, &env).unwrap();
    (home, store)
}

#[tokio::test(flavor = "multi_thread")]
async fn local_directory_passes_the_conformance_tests() {
    let (_home, store) = open_local_store();
    conformance::run_all(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_files_below_the_home_directory() {
    let (home, store) = open_local_store();
    put_object(&store, "shoot/v2/Full-1", &random_bytes(1, 10)).await;
    let file = home.path().join("default.bkp/shoot/v2/Full-1");
    assert_eq!(fs::read(file).unwrap(), random_bytes(1, 10));
    fs::write(home.path().join("default.bkp/shoot/v2/Full-2"), "by hand").unwrap();
    assert_eq!(
        list_keys(&store, "shoot/v2").await,
        ["shoot/v2/Full-1", "shoot/v2/Full-2"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_is_invisible_until_finished_and_removed_when_dropped() {
    let (home, store) = open_local_store();
    let mut writer = store
        .upload("v2/Full-1", UploadOptions::default())
        .unwrap()
        .into_writer();
    let writer = tokio::task::spawn_blocking(move || {
        writer.write_all(&random_bytes(2, 12 << 20)).unwrap();
        writer
    });
    let writer = writer.await.unwrap();
    assert_eq!(list_keys(&store, "v2").await, Vec::<String>::new());
    assert_eq!(
        fs::read_dir(home.path().join("default.bkp/v2"))
            .unwrap()
            .count(),
        1
    );
    drop(writer);
    // The abort runs in the background.
    let deadline = Instant::now() + Duration::from_mins(2);
    while fs::read_dir(home.path().join("default.bkp/v2"))
        .unwrap()
        .count()
        > 0
    {
        assert!(
            Instant::now() < deadline,
            "the unfinished file was not removed"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_directory_is_denied_without_retries() {
    let (home, store) = open_local_store();
    // Root ignores permissions, so a file takes the place of the directory.
    fs::write(home.path().join("default.bkp"), "a file").unwrap();
    let upload = store.upload("v2/Full-1", UploadOptions::default()).unwrap();
    let error = upload.finish().await.unwrap_err();
    assert_ne!(error.class(), ErrorClass::Transient, "{error:?}");
    assert!(error.to_string().contains("v2/Full-1"), "{error}");
}

#[test]
fn store_without_a_home_directory_is_not_opened() {
    let config = StoreConfig::new(StorageProvider::Local, "default.bkp");
    let error = SnapStore::open(&config, &Environment::default()).unwrap_err();
    assert!(matches!(error, StoreOpenError::HomeUnset), "{error:?}");
    let config = StoreConfig::new(StorageProvider::Local, "../elsewhere");
    let env = Environment::from_iter([("HOME", "/nowhere")]);
    let error = SnapStore::open(&config, &env).unwrap_err();
    assert!(
        matches!(error, StoreOpenError::InvalidContainer { .. }),
        "{error:?}"
    );
}
