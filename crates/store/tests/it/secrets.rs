//! Secrets never appear in printed output.

use std::error::Error;
use std::fmt::{Debug, Write};
use std::fs;
use std::path::Path;
use std::time::Duration;

use mainstay_store::{
    Environment, SnapStore, StorageProvider, StoreConfig, TransferConfig, UploadOptions,
};

use crate::s3::write_secret_directory;

const SECRET_MARKER: &str = "do-not-print-me";

/// All printed forms of an error: each message and the debug output.
fn format_whole_error(error: &(dyn Error + 'static)) -> String {
    let mut text = format!("{error:?}");
    let mut next = Some(error);
    while let Some(cause) = next {
        write!(text, "\n{cause}").unwrap();
        next = cause.source();
    }
    text
}

#[track_caller]
fn assert_no_secret(what: &str, text: &str) {
    assert!(
        !text.contains(SECRET_MARKER),
        "{what} shows a secret: {text}"
    );
    let encoded = base64_simd::STANDARD.encode_to_string(SECRET_MARKER);
    assert!(
        !text.contains(&encoded),
        "{what} shows an encoded secret: {text}"
    );
}

/// Opens a store at an unreachable address and checks everything it prints.
async fn check_provider_output(provider: StorageProvider, env: Environment) {
    let config = StoreConfig {
        endpoint: Some("http://127.0.0.1:1".parse().unwrap()),
        transfer: TransferConfig {
            retry_timeout: Duration::from_millis(300),
            ..TransferConfig::default()
        },
        ..StoreConfig::new(provider, "backups")
    };
    let show = |value: &dyn Debug| format!("{value:?} {value:#?}");
    assert_no_secret("the environment", &show(&env));
    let store = match SnapStore::open(&config, &env) {
        Ok(store) => store,
        Err(error) => {
            assert_no_secret("an open error", &format_whole_error(&error));
            return;
        }
    };
    assert_no_secret("the store", &show(&store));
    assert_no_secret("the fingerprint", &show(store.credential_fingerprint()));
    let upload = store
        .upload("v2/Full-1", UploadOptions::create_only())
        .unwrap();
    assert_no_secret("an upload", &show(&upload));
    let write = upload.finish().await.unwrap_err();
    assert_no_secret("a write error", &format_whole_error(&write));
    let list = store.list("v2").await.unwrap_err();
    assert_no_secret("a list error", &format_whole_error(&list));
}

fn write_json(directory: &Path, name: &str, value: &serde_json::Value) -> String {
    let file = directory.join(name);
    fs::write(&file, value.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_provider_prints_its_secrets() {
    let home = tempfile::tempdir().unwrap();
    let customer_key = format!("{SECRET_MARKER}{}", "x".repeat(32 - SECRET_MARKER.len()));
    let s3 = write_secret_directory(
        home.path(),
        &[
            ("region", "r"),
            ("accessKeyID", "id"),
            ("secretAccessKey", SECRET_MARKER),
            ("sseCustomerKey", &customer_key),
            ("sseCustomerAlgorithm", "AES256"),
        ],
    );
    check_provider_output(
        StorageProvider::S3,
        Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", s3)]),
    )
    .await;
    let ambient = [
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", SECRET_MARKER),
    ];
    check_provider_output(StorageProvider::S3, Environment::from_iter(ambient)).await;

    let key = base64_simd::STANDARD.encode_to_string(SECRET_MARKER);
    let azure = serde_json::json!({ "storageAccount": "account", "storageKey": key });
    let azure = write_json(home.path(), "azure.json", &azure);
    let env = Environment::from_iter([("AZURE_APPLICATION_CREDENTIALS_JSON", azure)]);
    check_provider_output(StorageProvider::Abs, env).await;

    let google = serde_json::json!({
        "type": "service_account", "private_key": SECRET_MARKER, "private_key_id": "id",
        "client_email": "a@b.c", "project_id": "p",
    });
    let google = write_json(home.path(), "google.json", &google);
    check_provider_output(
        StorageProvider::Gcs,
        Environment::from_iter([("GOOGLE_APPLICATION_CREDENTIALS", google)]),
    )
    .await;

    let oss = serde_json::json!({
        "accessKeyID": "id", "accessKeySecret": SECRET_MARKER, "storageEndpoint": "http://127.0.0.1:1",
    });
    let oss = write_json(home.path(), "oss.json", &oss);
    check_provider_output(
        StorageProvider::Oss,
        Environment::from_iter([("ALICLOUD_APPLICATION_CREDENTIALS_JSON", oss)]),
    )
    .await;

    let ecs = [
        ("ECS_ENDPOINT", "http://127.0.0.1:1"),
        ("ECS_ACCESS_KEY_ID", "id"),
        ("ECS_SECRET_ACCESS_KEY", SECRET_MARKER),
    ];
    check_provider_output(StorageProvider::Ecs, Environment::from_iter(ecs)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_credential_files_are_described_without_their_content() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("broken.json");
    for content in [
        format!("{{\"accessKeyID\": \"{SECRET_MARKER}\""),
        format!("\"{SECRET_MARKER}\""),
        format!("{{\"region\": \"r\", \"secretAccessKey\": \"{SECRET_MARKER}\"}}"),
        format!(
            "{{\"region\": \"r\", \"accessKeyID\": \"id\", \"secretAccessKey\": \"{SECRET_MARKER}\", \
             \"s3ForcePathStyle\": \"{SECRET_MARKER}\"}}"
        ),
        format!(
            "{{\"region\": \"r\", \"accessKeyID\": \"id\", \"secretAccessKey\": \"{SECRET_MARKER}\", \
             \"sseCustomerKey\": \"{SECRET_MARKER}\", \"sseCustomerAlgorithm\": \"AES256\"}}"
        ),
    ] {
        fs::write(&file, &content).unwrap();
        let env =
            Environment::from_iter([("AWS_APPLICATION_CREDENTIALS_JSON", file.to_str().unwrap())]);
        let error = SnapStore::open(&StoreConfig::new(StorageProvider::S3, "b"), &env).unwrap_err();
        let text = format_whole_error(&error);
        assert_no_secret("the error", &text);
        assert!(text.contains("AWS_APPLICATION_CREDENTIALS_JSON"), "{text}");
        assert!(text.contains("broken.json"), "{text}");
    }
}
