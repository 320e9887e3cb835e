//! Provider `ABS`, against Azurite.

use std::fs;

use mainstay_store::{Environment, ErrorClass, SnapStore, StorageProvider, StoreConfig};

use crate::conformance;
use crate::data::test_transfer_config;
use crate::servers::Azurite;

pub(crate) fn open_store(azurite: &Azurite, endpoint: &str, key: &str) -> SnapStore {
    let file = azurite.server.directory.path().join("azure.json");
    let fields = serde_json::json!({ "storageAccount": Azurite::ACCOUNT, "storageKey": key });
    fs::write(&file, fields.to_string()).unwrap();
    let env =
        Environment::from_iter([("AZURE_APPLICATION_CREDENTIALS_JSON", file.to_str().unwrap())]);
    let config = StoreConfig {
        endpoint: Some(endpoint.parse().unwrap()),
        transfer: test_transfer_config(),
        ..StoreConfig::new(StorageProvider::Abs, Azurite::CONTAINER)
    };
    SnapStore::open(&config, &env).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn azure_blob_storage_passes_the_conformance_tests() {
    let azurite = Azurite::start().await;
    conformance::run_all(&open_store(&azurite, &azurite.endpoint, Azurite::KEY)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_account_key_is_denied() {
    let azurite = Azurite::start().await;
    let store = open_store(&azurite, &azurite.endpoint, "d3Jvbmcga2V5");
    let error = store.list("v2").await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Denied, "{error:?}");
}
