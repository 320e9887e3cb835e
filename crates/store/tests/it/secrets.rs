//! Secrets stay out of everything that can be printed.

use std::error::Error;
use std::fmt::{Debug, Write};
use std::fs;
use std::path::Path;
use std::time::Duration;

use mainstay_store::{Effort, Environment, Provider, SnapStore, StoreConfig, UploadOptions};

use crate::s3::secret_directory;

const MARK: &str = "do-not-print-me";

/// Everything a person could see of an error: each message and the debug form.
fn visible(error: &(dyn Error + 'static)) -> String {
    let mut text = format!("{error:?}");
    let mut next = Some(error);
    while let Some(cause) = next {
        write!(text, "\n{cause}").unwrap();
        next = cause.source();
    }
    text
}

#[track_caller]
fn assert_hidden(what: &str, text: &str) {
    assert!(!text.contains(MARK), "{what} shows a secret: {text}");
    let encoded = base64_simd::STANDARD.encode_to_string(MARK);
    assert!(
        !text.contains(&encoded),
        "{what} shows an encoded secret: {text}"
    );
}

/// Opens a store at an address where nobody answers, and looks at all it prints.
async fn check(provider: Provider, env: Environment) {
    let config = StoreConfig {
        endpoint: Some("http://127.0.0.1:1".parse().unwrap()),
        effort: Effort {
            retry_timeout: Duration::from_millis(300),
            ..Effort::default()
        },
        ..StoreConfig::new(provider, "backups")
    };
    let show = |value: &dyn Debug| format!("{value:?} {value:#?}");
    assert_hidden("the environment", &show(&env));
    let store = match SnapStore::open(&config, &env) {
        Ok(store) => store,
        Err(error) => {
            assert_hidden("an open error", &visible(&error));
            return;
        }
    };
    assert_hidden("the store", &show(&store));
    assert_hidden("the fingerprint", &show(store.fingerprint()));
    let upload = store
        .upload("v2/Full-1", UploadOptions::create_only())
        .unwrap();
    assert_hidden("an upload", &show(&upload));
    let write = upload.finish().await.unwrap_err();
    assert_hidden("a write error", &visible(&write));
    let list = store.list("v2").await.unwrap_err();
    assert_hidden("a list error", &visible(&list));
}

fn json(directory: &Path, name: &str, value: &serde_json::Value) -> String {
    let file = directory.join(name);
    fs::write(&file, value.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_provider_prints_its_secrets() {
    let home = tempfile::tempdir().unwrap();
    let customer_key = format!("{MARK}{}", "x".repeat(32 - MARK.len()));
    let s3 = secret_directory(
        home.path(),
        &[
            ("region", "r"),
            ("accessKeyID", "id"),
            ("secretAccessKey", MARK),
            ("sseCustomerKey", &customer_key),
            ("sseCustomerAlgorithm", "AES256"),
        ],
    );
    check(
        Provider::S3,
        Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", s3)]),
    )
    .await;
    let ambient = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", MARK)];
    check(Provider::S3, Environment::from_iter(ambient)).await;

    let key = base64_simd::STANDARD.encode_to_string(MARK);
    let azure = serde_json::json!({ "storageAccount": "account", "storageKey": key });
    let azure = json(home.path(), "azure.json", &azure);
    let env = Environment::from_iter([("AZURE_APPLICATION_CREDENTIALS_JSON", azure)]);
    check(Provider::Abs, env).await;

    let google = serde_json::json!({
        "type": "service_account", "private_key": MARK, "private_key_id": "id",
        "client_email": "a@b.c", "project_id": "p",
    });
    let google = json(home.path(), "google.json", &google);
    check(
        Provider::Gcs,
        Environment::from_iter([("GOOGLE_APPLICATION_CREDENTIALS", google)]),
    )
    .await;

    let oss = serde_json::json!({
        "accessKeyID": "id", "accessKeySecret": MARK, "storageEndpoint": "http://127.0.0.1:1",
    });
    let oss = json(home.path(), "oss.json", &oss);
    check(
        Provider::Oss,
        Environment::from_iter([("ALICLOUD_APPLICATION_CREDENTIALS_JSON", oss)]),
    )
    .await;

    let ecs = [
        ("ECS_ENDPOINT", "http://127.0.0.1:1"),
        ("ECS_ACCESS_KEY_ID", "id"),
        ("ECS_SECRET_ACCESS_KEY", MARK),
    ];
    check(Provider::Ecs, Environment::from_iter(ecs)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_credential_files_are_described_without_their_content() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("broken.json");
    for content in [
        format!("{{\"accessKeyID\": \"{MARK}\""),
        format!("\"{MARK}\""),
        format!("{{\"region\": \"r\", \"secretAccessKey\": \"{MARK}\"}}"),
        format!(
            "{{\"region\": \"r\", \"accessKeyID\": \"id\", \"secretAccessKey\": \"{MARK}\", \
             \"s3ForcePathStyle\": \"{MARK}\"}}"
        ),
        format!(
            "{{\"region\": \"r\", \"accessKeyID\": \"id\", \"secretAccessKey\": \"{MARK}\", \
             \"sseCustomerKey\": \"{MARK}\", \"sseCustomerAlgorithm\": \"AES256\"}}"
        ),
    ] {
        fs::write(&file, &content).unwrap();
        let env =
            Environment::from_iter([("AWS_APPLICATION_CREDENTIALS_JSON", file.to_str().unwrap())]);
        let error = SnapStore::open(&StoreConfig::new(Provider::S3, "b"), &env).unwrap_err();
        let text = visible(&error);
        assert_hidden("the error", &text);
        assert!(text.contains("AWS_APPLICATION_CREDENTIALS_JSON"), "{text}");
        assert!(text.contains("broken.json"), "{text}");
    }
}
