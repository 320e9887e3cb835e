use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use object_store::CredentialProvider;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::external_account::ExternalAccount;
use super::*;
use crate::ErrorClass;

/// The store as its client's `Debug` output describes it.
fn describe_backend(
    provider: StorageProvider,
    container: &str,
    endpoint: Option<&str>,
    env: &Environment,
) -> String {
    let config = StoreConfig {
        endpoint: endpoint.map(|text| text.parse().unwrap()),
        ..StoreConfig::new(provider, container)
    };
    match open_backend(&config, env) {
        Ok(backend) => format!("{backend:?}"),
        Err(error) => panic!("{error:?}"),
    }
}

fn mount_credentials(extra: &[(&str, &str)]) -> (TempDir, Environment) {
    let directory = tempfile::tempdir().unwrap();
    let keys = [
        ("region", "eu-1"),
        ("accessKeyID", "id"),
        ("secretAccessKey", "s"),
    ];
    for (name, value) in keys.iter().chain(extra) {
        fs::write(directory.path().join(name), value).unwrap();
    }
    let path = directory.path().to_str().unwrap().to_owned();
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", path)]);
    (directory, env)
}

#[test]
fn debug_output_of_a_store_shows_its_bucket_only() {
    let (_directory, env) = mount_credentials(&[]);
    let shown = describe_backend(StorageProvider::S3, "bucket", None, &env);
    assert_eq!(shown, "Remote(Remote(AmazonS3(bucket)))");
}

#[test]
fn virtual_hosted_style_is_used_only_where_possible() {
    let addressed = |endpoint: &str, bucket: &str, path_style: bool| {
        let builder = AmazonS3Builder::new();
        let builder =
            s3::with_bucket_endpoint(builder, &endpoint.parse().unwrap(), bucket, path_style);
        let hosted = builder.get_config_value(&AmazonS3ConfigKey::VirtualHostedStyleRequest);
        let address = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        (address.unwrap(), hosted.unwrap() == "true")
    };
    let expect = |address: &str, hosted| (address.to_owned(), hosted);
    let host = "https://s3.example:9000/";
    assert_eq!(
        addressed(host, "b", false),
        expect("https://b.s3.example:9000", true)
    );
    assert_eq!(
        addressed(host, "b", true),
        expect("https://s3.example:9000", false)
    );
    assert_eq!(
        addressed(host, "b.c", false),
        expect("https://s3.example:9000", false)
    );
    let plain = "http://127.0.0.1:9000";
    assert_eq!(addressed(plain, "b", false), expect(plain, false));
    assert_eq!(
        addressed("http://localhost:1", "b", false),
        expect("http://localhost:1", false)
    );
}

#[test]
fn every_provider_opens_without_sending_a_request() {
    let ambient = Environment::from_iter([
        ("AWS_REGION", "eu-1"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("HOME", "/nowhere"),
    ]);
    for provider in [
        StorageProvider::Local,
        StorageProvider::S3,
        StorageProvider::Abs,
        StorageProvider::Gcs,
    ] {
        let config = StoreConfig::new(provider, "bucket");
        assert!(open_backend(&config, &ambient).is_ok(), "{provider}");
    }
}

#[test]
fn endpoint_must_be_an_http_url() {
    let (_directory, env) = mount_credentials(&[("endpoint", "s3.local")]);
    let config = StoreConfig::new(StorageProvider::S3, "bucket");
    let error = open_backend(&config, &env).unwrap_err();
    assert!(
        matches!(error, StoreOpenError::InvalidEndpoint { .. }),
        "{error:?}"
    );
    let config = StoreConfig {
        endpoint: Some("ftp://x".parse().unwrap()),
        ..config
    };
    let error = open_backend(&config, &env).unwrap_err();
    assert!(
        matches!(error, StoreOpenError::InvalidEndpoint { .. }),
        "{error:?}"
    );
}

#[test]
fn oss_opens_with_its_own_client() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("oss.json");
    let fields = r#"{"accessKeyID": "id", "accessKeySecret": "s",
        "storageEndpoint": "oss-eu-central-1.aliyuncs.com"}"#;
    fs::write(&file, fields).unwrap();
    let path = file.to_str().unwrap();
    let env = Environment::from_iter([("ALICLOUD_APPLICATION_CREDENTIALS_JSON", path)]);
    let shown = describe_backend(StorageProvider::Oss, "bucket", None, &env);
    assert!(shown.contains("bucket"), "{shown}");
    let config = StoreConfig::new(StorageProvider::Oss, "bucket");
    let error = open_backend(&config, &Environment::default()).unwrap_err();
    assert!(
        matches!(error, StoreOpenError::Credentials { .. }),
        "{error:?}"
    );
}

/// A token service that answers each request with the next of `answers` and records the requests.
struct TokenService {
    url: String,
    requests: Arc<std::sync::Mutex<Vec<String>>>,
    count: Arc<AtomicUsize>,
}

impl TokenService {
    async fn start(answers: Vec<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(std::sync::Mutex::new(Vec::new()));
        let count = Arc::new(AtomicUsize::new(0));
        let (log, served) = (Arc::clone(&requests), Arc::clone(&count));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 64 * 1024];
                let mut length = 0;
                while !is_request_complete(&request[..length]) {
                    length += stream.read(&mut request[length..]).await.unwrap();
                }
                let text = String::from_utf8_lossy(&request[..length]).into_owned();
                log.lock().unwrap().push(text);
                let answer = answers[served.fetch_add(1, Ordering::SeqCst) % answers.len()];
                let (status, body) = answer.split_once(' ').unwrap();
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n\
                     connection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
            }
        });
        Self {
            url,
            requests,
            count,
        }
    }

    fn write_account_file(&self, directory: &TempDir, impersonate: bool) -> std::path::PathBuf {
        fs::write(directory.path().join("token"), "subject-token\n").unwrap();
        let mut fields = serde_json::json!({
            "type": "external_account",
            "audience": "//iam.googleapis.com/pool",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": format!("{}/v1/token", self.url),
            "credential_source": {
                "file": directory.path().join("token"), "format": { "type": "text" },
            },
        });
        if impersonate {
            let url = format!("{}/sa:generateAccessToken", self.url);
            fields["service_account_impersonation_url"] = url.into();
        }
        let file = directory.path().join("external.json");
        fs::write(&file, fields.to_string()).unwrap();
        file
    }
}

fn is_request_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    body.len() >= length.unwrap_or(0)
}

const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

#[tokio::test]
async fn external_token_is_exchanged_once_and_cached() {
    let service = TokenService::start(vec![
        r#"200 {"access_token": "federated", "expires_in": 3600}"#,
    ]);
    let (service, directory) = (service.await, tempfile::tempdir().unwrap());
    let account =
        ExternalAccount::from_file(&service.write_account_file(&directory, false), TIMEOUT)
            .unwrap();
    for _ in 0..3 {
        assert_eq!(account.get_credential().await.unwrap().bearer, "federated");
    }
    assert_eq!(service.count.load(Ordering::SeqCst), 1);
    let request = service.requests.lock().unwrap().remove(0);
    for part in [
        "POST /v1/token",
        "subject_token=subject-token",
        "audience=%2F%2Fiam.googleapis",
    ] {
        assert!(request.contains(part), "{request} lacks {part}");
    }
    let shown = format!("{account:?}");
    assert!(
        !shown.contains("federated") && !shown.contains("subject-token"),
        "{shown}"
    );
}

#[tokio::test]
async fn service_account_is_impersonated_with_the_exchanged_token() {
    let service = TokenService::start(vec![
        r#"200 {"access_token": "federated", "expires_in": 3600}"#,
        r#"200 {"accessToken": "impersonated", "expireTime": "2030-01-01T00:00:00Z"}"#,
    ]);
    let (service, directory) = (service.await, tempfile::tempdir().unwrap());
    let account =
        ExternalAccount::from_file(&service.write_account_file(&directory, true), TIMEOUT).unwrap();
    assert_eq!(
        account.get_credential().await.unwrap().bearer,
        "impersonated"
    );
    let requests = service.requests.lock().unwrap();
    assert!(
        requests[1].contains("POST /sa:generateAccessToken"),
        "{}",
        requests[1]
    );
    assert!(
        requests[1]
            .to_lowercase()
            .contains("authorization: bearer federated")
    );
}

#[tokio::test]
async fn token_about_to_expire_is_exchanged_again() {
    let service = TokenService::start(vec![r#"200 {"access_token": "short", "expires_in": 60}"#]);
    let (service, directory) = (service.await, tempfile::tempdir().unwrap());
    let account =
        ExternalAccount::from_file(&service.write_account_file(&directory, false), TIMEOUT)
            .unwrap();
    account.get_credential().await.unwrap();
    account.get_credential().await.unwrap();
    assert_eq!(service.count.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn refused_token_exchange_is_denied_and_server_error_is_transient() {
    let service = TokenService::start(vec!["403 {}", "503 {}", "200 {}"]);
    let (service, directory) = (service.await, tempfile::tempdir().unwrap());
    let account =
        ExternalAccount::from_file(&service.write_account_file(&directory, false), TIMEOUT)
            .unwrap();
    let mut classes = Vec::new();
    for _ in 0..3 {
        let error = account.get_credential().await.unwrap_err();
        classes.push(crate::AttemptError::Remote(error).class());
    }
    assert_eq!(
        classes,
        [
            ErrorClass::Denied,
            ErrorClass::Transient,
            ErrorClass::Denied
        ]
    );
}

#[tokio::test]
async fn tokens_are_sent_over_tls_only() {
    let service = TokenService::start(vec!["200 {}"]).await;
    let directory = tempfile::tempdir().unwrap();
    let file = service.write_account_file(&directory, false);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace(&service.url, "http://sts.example")).unwrap();
    let error = ExternalAccount::from_file(&file, TIMEOUT).unwrap_err();
    assert!(
        matches!(error, ExternalAccountError::InsecureUrl { .. }),
        "{error:?}"
    );
    fs::write(&file, text.replace(&service.url, "https://sts.example")).unwrap();
    assert!(ExternalAccount::from_file(&file, TIMEOUT).is_ok());
    fs::write(&file, r#"{"type": "external_account"}"#).unwrap();
    let error = ExternalAccount::from_file(&file, TIMEOUT).unwrap_err();
    assert!(
        matches!(error, ExternalAccountError::InvalidFile { .. }),
        "{error:?}"
    );
}
