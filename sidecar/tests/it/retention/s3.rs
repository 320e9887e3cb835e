//! `SeaweedFS`, a real S3 server, behind a proxy that can refuse deletions.
//!
//! `make test` sets the variable with the path of the program; without it the tests fail.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode, header};
use mainstay_store::{Environment, StorageProvider, StoreConfig, TransferConfig};
use mainstay_testkit::ports::free_ports;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use super::test_store::TestStore;

const BUCKET: &str = "backups";
const KEY_ID: &str = "AKIDMAINSTAYTEST";
const SECRET: &str = "weed-secret-that-must-not-leak";

/// Error of a refused deletion.
#[derive(Clone, Copy)]
enum DeletionRefusal {
    /// As of an Amazon bucket with object lock.
    Locked,
    /// As of a role without the permission.
    Denied,
}

impl DeletionRefusal {
    fn body(self) -> &'static str {
        match self {
            Self::Locked => {
                "<Error><Code>AccessDenied</Code><Message>Access Denied because object protected by \
                 object lock.</Message></Error>"
            }
            Self::Denied => {
                "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            }
        }
    }
}

/// The server, the proxy, and the proxy's settings.
struct S3Server {
    child: Child,
    directory: TempDir,
    endpoint: String,
    refusal: Arc<Mutex<Option<(DeletionRefusal, &'static str)>>>,
    refused_count: Arc<Mutex<usize>>,
    ports: [u16; 8],
    _proxy: AbortOnDropHandle<()>,
}

impl S3Server {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = free_ports::<8>();
        let child = start_weed(directory.path(), &ports);
        let upstream = format!("127.0.0.1:{}", ports[6]);
        wait_for_answer(&format!("http://{upstream}/healthz"), Method::GET).await;
        let filer = format!("http://127.0.0.1:{}/buckets/{BUCKET}/", ports[4]);
        wait_for_answer(&filer, Method::POST).await;
        let proxy_state = DeletionProxy {
            upstream,
            client: reqwest::Client::new(),
            refusal: Arc::default(),
            refused_count: Arc::default(),
        };
        let (refusal, refused_count) = (
            Arc::clone(&proxy_state.refusal),
            Arc::clone(&proxy_state.refused_count),
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let proxy = Router::new()
            .fallback(proxy_request)
            .with_state(proxy_state);
        let proxy = tokio::spawn(async move { axum::serve(listener, proxy).await.unwrap() });
        Self {
            child,
            directory,
            endpoint,
            refusal,
            refused_count,
            ports,
            _proxy: AbortOnDropHandle::new(proxy),
        }
    }

    fn open_store(&self) -> TestStore {
        let credentials = self.directory.path().join("credentials");
        fs::create_dir_all(&credentials).unwrap();
        for (name, value) in [
            ("region", "us-east-1"),
            ("accessKeyID", KEY_ID),
            ("secretAccessKey", SECRET),
        ] {
            fs::write(credentials.join(name), value).unwrap();
        }
        let config = StoreConfig {
            endpoint: Some(self.endpoint.parse().unwrap()),
            transfer: TransferConfig {
                request_timeout: Duration::from_secs(20),
                retry_timeout: Duration::from_secs(30),
                ..TransferConfig::default()
            },
            ..StoreConfig::new(StorageProvider::S3, BUCKET)
        };
        let credentials = credentials.to_str().unwrap();
        let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", credentials)]);
        TestStore::open_remote(config, &env)
    }

    fn set_refusal(&self, refusal: Option<DeletionRefusal>) {
        *self.refusal.lock().unwrap() = refusal.map(|refusal| (refusal, ""));
    }

    /// Refuses to delete objects whose key contains `part`.
    fn refuse_deletions_of(&self, refusal: DeletionRefusal, part: &'static str) {
        *self.refusal.lock().unwrap() = Some((refusal, part));
    }

    /// Deletions refused since the last call.
    fn take_refused(&self) -> usize {
        std::mem::take(&mut self.refused_count.lock().unwrap())
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // Fails if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for port in &self.ports {
            for name in [
                "master-grpc",
                "volume-grpc",
                "filer",
                "filer-grpc",
                "s3",
                "s3-grpc",
            ] {
                // A killed server leaves these sockets behind; not all of them exist.
                let _ = fs::remove_file(format!("/tmp/seaweedfs-{name}-{port}.sock"));
            }
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(self.directory.path().join("weed.log"));
            eprintln!("{}", log.unwrap_or_default());
        }
    }
}

#[derive(Clone)]
struct DeletionProxy {
    upstream: String,
    client: reqwest::Client,
    refusal: Arc<Mutex<Option<(DeletionRefusal, &'static str)>>>,
    refused_count: Arc<Mutex<usize>>,
}

/// Forwards a request with all headers, so that its signature stays valid.
async fn proxy_request(
    State(proxy_state): State<DeletionProxy>,
    request: Request,
) -> Response<Body> {
    let refusal = *proxy_state.refusal.lock().unwrap();
    let is_deletion = request.method() == Method::DELETE;
    let path = request.uri().path().to_owned();
    let refusal = refusal.filter(|(_, part)| is_deletion && path.contains(part));
    if let Some((refusal, _)) = refusal {
        *proxy_state.refused_count.lock().unwrap() += 1;
        let mut response = Response::new(Body::from(refusal.body()));
        *response.status_mut() = StatusCode::FORBIDDEN;
        return response;
    }
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let path = parts.uri.path_and_query().unwrap();
    let answer = proxy_state
        .client
        .request(
            parts.method,
            format!("http://{}{path}", proxy_state.upstream),
        )
        .headers(parts.headers)
        .body(body)
        .send()
        .await
        .unwrap();
    let (status, headers) = (answer.status(), answer.headers().clone());
    let mut response = Response::new(Body::from(answer.bytes().await.unwrap()));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.headers_mut().remove(header::TRANSFER_ENCODING);
    response
}

#[expect(
    clippy::disallowed_methods,
    reason = "make test passes the paths of programs in variables"
)]
fn find_weed() -> PathBuf {
    match std::env::var("MAINSTAY_WEED") {
        Ok(path) if Path::new(&path).is_file() => path.into(),
        found => panic!("MAINSTAY_WEED is {found:?}; run `make test`, which installs the server"),
    }
}

fn start_weed(directory: &Path, ports: &[u16]) -> Child {
    let identities = serde_json::json!({ "identities": [{
        "name": "mainstay",
        "credentials": [{ "accessKey": KEY_ID, "secretKey": SECRET }],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }]});
    let config = directory.join("s3.json");
    fs::write(&config, identities.to_string()).unwrap();
    let log = File::create(directory.join("weed.log")).unwrap();
    let names = [
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
        "s3.port",
        "s3.port.grpc",
    ];
    let ports = names
        .iter()
        .zip(ports)
        .map(|(name, port)| format!("-{name}={port}"));
    Command::new(find_weed())
        .args([
            "server",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer",
            "-s3",
        ])
        .args([
            "-master.telemetry=false",
            "-volume.max=50",
            "-master.volumeSizeLimitMB=128",
        ])
        .args(["-s3.port.iceberg=0", "-s3.port.lance=0"])
        .arg(format!("-dir={}", directory.display()))
        .arg(format!("-s3.config={}", config.display()))
        .args(ports)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .expect("failed to start weed")
}

async fn wait_for_answer(url: &str, method: Method) {
    let client = reqwest::Client::builder()
        .timeout(Duration::from_secs(5))
        .build()
        .unwrap();
    for _ in 0..900 {
        let answer = client.request(method.clone(), url).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{url} does not respond");
}

mod live {
    use jiff::SignedDuration;
    use mainstay_sidecar::retention::RetentionError;

    use super::super::{build_retention, keep_one_config, test_time, time_after, write_two_chains};
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn retention_on_s3_keeps_only_the_newest_chain() {
        let server = S3Server::start().await;
        let bucket = server.open_store();
        let keys = write_two_chains(&bucket).await;
        let summary = build_retention(&bucket.store, keep_one_config())
            .run_once(test_time())
            .await;
        let summary = summary.unwrap();
        assert_eq!(summary.verified_base.as_ref(), Some(&keys[2]));
        assert_eq!(bucket.list_keys().await, keys[2..]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn locked_object_is_skipped_for_an_hour_and_is_not_a_failure() {
        let server = S3Server::start().await;
        let bucket = server.open_store();
        let keys = write_two_chains(&bucket).await;
        let retention = build_retention(&bucket.store, keep_one_config());
        server.set_refusal(Some(DeletionRefusal::Locked));
        let summary = retention.run_once(test_time()).await.unwrap();
        assert_eq!((summary.deleted, summary.locked, summary.failed), (0, 1, 0));
        // The delta could not be deleted, so its base is not tried.
        assert_eq!(server.take_refused(), 1);
        let summary = retention
            .run_once(time_after(SignedDuration::from_mins(59)))
            .await;
        assert_eq!((summary.unwrap().locked, server.take_refused()), (0, 0));
        let summary = retention
            .run_once(time_after(SignedDuration::from_mins(60)))
            .await;
        assert_eq!((summary.unwrap().locked, server.take_refused()), (1, 1));
        server.set_refusal(None);
        let summary = retention
            .run_once(time_after(SignedDuration::from_hours(2)))
            .await;
        assert_eq!(summary.unwrap().deleted, 2);
        assert_eq!(bucket.list_keys().await, keys[2..]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn locked_delta_keeps_its_base_and_earlier_deltas() {
        let server = S3Server::start().await;
        let bucket = server.open_store();
        bucket.put_full(10, 0).await;
        bucket.put_delta(11, 15, 1).await;
        bucket.put_delta(16, 20, 2).await;
        bucket.put_full(20, 3).await;
        let before = bucket.list_keys().await;
        server.refuse_deletions_of(DeletionRefusal::Locked, "Incr-00000016-00000020");
        let summary = build_retention(&bucket.store, keep_one_config())
            .run_once(test_time())
            .await;
        let summary = summary.unwrap();
        assert_eq!((summary.deleted, summary.locked, summary.failed), (0, 1, 0));
        assert_eq!(bucket.list_keys().await, before, "the whole chain is kept");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn five_refused_deletions_end_the_round() {
        let server = S3Server::start().await;
        let bucket = server.open_store();
        for number in 1..=9 {
            bucket.put_full(number * 10, number).await;
        }
        let retention = build_retention(&bucket.store, keep_one_config());
        server.set_refusal(Some(DeletionRefusal::Denied));
        let error = retention.run_once(test_time()).await.unwrap_err();
        let is_expected = matches!(
            error,
            RetentionError::Delete {
                deleted: 0,
                failed: 5,
                ..
            }
        );
        assert!(is_expected, "{error:?}");
        assert_eq!(server.take_refused(), 5);
        server.set_refusal(None);
        assert_eq!(retention.run_once(test_time()).await.unwrap().deleted, 8);
    }
}
