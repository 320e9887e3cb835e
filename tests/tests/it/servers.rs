//! Object stores on loopback ports, started for one test and stopped with it.
//!
//! Programs are found through the variables that `make test` sets. Without them a test fails instead of being skipped.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainstay_testkit::ports::free_ports;
use object_store::ClientOptions;
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Timeout of a server's start on a busy machine.
const STARTUP_TIMEOUT: Duration = Duration::from_mins(3);
/// Maximum size of a request's head in bytes.
const MAX_HEAD_BYTES: usize = 65_536;

/// A running program; dropping it kills the process.
struct StoreServer {
    child: Child,
    directory: TempDir,
}

impl StoreServer {
    fn start(mut command: Command, directory: TempDir) -> Self {
        let log = File::create(directory.path().join("log")).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("failed to start {command:?}: {error}"));
        Self { child, directory }
    }

    /// Waits until a request returns this status.
    async fn wait_for(&mut self, request: impl Fn() -> reqwest::RequestBuilder, status: u16) {
        let deadline = Instant::now() + STARTUP_TIMEOUT;
        loop {
            let answer = request().timeout(Duration::from_secs(5)).send().await;
            if answer.is_ok_and(|answer| answer.status() == status) {
                return;
            }
            let log = || fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            if let Some(exit) = self.child.try_wait().unwrap() {
                panic!("the server exited with {exit}:\n{}", log());
            }
            assert!(
                Instant::now() < deadline,
                "the server does not serve:\n{}",
                log()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program_from_env(variable: &str) -> PathBuf {
    match std::env::var_os(variable).map(PathBuf::from) {
        Some(path) if path.is_file() => path,
        found => panic!(
            "{variable} must be the path of a program, but is {found:?}; run `make test-live`"
        ),
    }
}

/// `SeaweedFS`, a real S3 server.
pub(crate) struct SeaweedFs {
    server: StoreServer,
    ports: [u16; 8],
    pub(crate) endpoint: String,
}

impl SeaweedFs {
    pub(crate) const BUCKET: &str = "backups";
    pub(crate) const KEY_ID: &str = "AKIDMAINSTAYTEST";
    pub(crate) const SECRET: &str = "weed-secret";
    pub(crate) const OTHER_KEY_ID: &str = "AKIDMAINSTAYOTHER";
    pub(crate) const OTHER_SECRET: &str = "another-weed-secret";

    /// A server that requires signed requests.
    pub(crate) async fn start() -> Self {
        Self::start_with_identities(&[]).await
    }

    /// A server without authentication.
    pub(crate) async fn start_open() -> Self {
        Self::start_with_identities(&["anonymous"]).await
    }

    async fn start_with_identities(others: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let actions = ["Admin", "Read", "List", "Tagging", "Write"];
        let keys = json!([
            { "accessKey": Self::KEY_ID, "secretKey": Self::SECRET },
            { "accessKey": Self::OTHER_KEY_ID, "secretKey": Self::OTHER_SECRET },
        ]);
        let mut identities =
            vec![json!({ "name": "mainstay", "credentials": keys, "actions": actions })];
        identities.extend(
            others
                .iter()
                .map(|name| json!({ "name": name, "actions": actions })),
        );
        let config = directory.path().join("s3.json");
        fs::write(&config, json!({ "identities": identities }).to_string()).unwrap();
        let ports = free_ports();
        let command = Self::build_command(directory.path(), &config, ports);
        let mut server = StoreServer::start(command, directory);
        let [_, _, _, _, filer, _, s3, _] = ports;
        let endpoint = format!("http://127.0.0.1:{s3}");
        let client = reqwest::Client::new();
        server
            .wait_for(|| client.get(format!("{endpoint}/healthz")), 200)
            .await;
        // A bucket is a directory of the filer.
        let bucket = format!("http://127.0.0.1:{filer}/buckets/{}/", Self::BUCKET);
        server.wait_for(|| client.post(&bucket), 201).await;
        Self {
            server,
            ports,
            endpoint,
        }
    }

    fn build_command(directory: &Path, config: &Path, ports: [u16; 8]) -> Command {
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
        let mut command = Command::new(program_from_env("MAINSTAY_WEED"));
        command
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
            .args(
                names
                    .iter()
                    .zip(ports)
                    .map(|(name, port)| format!("-{name}={port}")),
            );
        command
    }

    /// Credentials as a mounted Secret: a directory with one file per field.
    pub(crate) fn credentials(&self) -> String {
        let directory = self.server.path().join("credentials");
        fs::create_dir_all(&directory).unwrap();
        let fields = [
            ("region", "us-east-1"),
            ("accessKeyID", Self::KEY_ID),
            ("secretAccessKey", Self::SECRET),
        ];
        for (name, value) in fields {
            fs::write(directory.join(name), value).unwrap();
        }
        directory.to_str().unwrap().to_owned()
    }
}

impl Drop for SeaweedFs {
    fn drop(&mut self) {
        // A killed server leaves these files outside its directory; not all of them always exist.
        for port in self.ports {
            for name in [
                "master-grpc",
                "volume-grpc",
                "filer",
                "filer-grpc",
                "s3",
                "s3-grpc",
            ] {
                let _ = fs::remove_file(format!("/tmp/seaweedfs-{name}-{port}.sock"));
            }
        }
    }
}

/// Azurite, Microsoft's own emulator of blob storage.
pub(crate) struct Azurite {
    server: StoreServer,
    pub(crate) endpoint: String,
}

impl Azurite {
    pub(crate) const CONTAINER: &str = "backups";
    const ACCOUNT: &str = "mainstay";
    /// Base64, as storage keys are.
    const KEY: &str = "c3Rld2FyZC1henVyaXRlLWtleQ==";

    pub(crate) async fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let [port] = free_ports();
        let mut command = Command::new(program_from_env("MAINSTAY_AZURITE"));
        command
            .env(
                "AZURITE_ACCOUNTS",
                format!("{}:{}", Self::ACCOUNT, Self::KEY),
            )
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
            .args(["--skipApiVersionCheck", "--disableTelemetry", "--location"])
            .arg(directory.path());
        let mut server = StoreServer::start(command, directory);
        let endpoint = format!("http://127.0.0.1:{port}/{}", Self::ACCOUNT);
        let client = reqwest::Client::new();
        // A request without credentials is rejected, which shows that the server is ready.
        server
            .wait_for(|| client.get(format!("{endpoint}?comp=list")), 403)
            .await;
        create_container(&format!("{endpoint}/{}?restype=container", Self::CONTAINER)).await;
        Self { server, endpoint }
    }

    /// Credentials as one JSON file.
    pub(crate) fn credentials(&self) -> String {
        let file = self.server.path().join("azure.json");
        let fields = json!({ "storageAccount": Self::ACCOUNT, "storageKey": Self::KEY });
        fs::write(&file, fields.to_string()).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

/// The programs never create containers, so the test signs that request itself.
async fn create_container(url: &str) {
    let mut request = HttpRequest::new(HttpRequestBody::empty());
    *request.method_mut() = "PUT".parse().unwrap();
    *request.uri_mut() = url.parse().unwrap();
    request
        .headers_mut()
        .insert("content-length", "0".parse().unwrap());
    let key = AzureCredential::AccessKey(AzureAccessKey::try_new(Azurite::KEY).unwrap());
    AzureAuthorizer::new(&key, Azurite::ACCOUNT)
        .try_authorize(&mut request)
        .unwrap();
    let options = ClientOptions::new().with_allow_http(true);
    let client = ReqwestConnector::default().connect(&options).unwrap();
    let answer = client.execute(request).await.unwrap();
    assert_eq!(answer.status(), 201, "failed to create the container");
}

/// A proxy that translates Google's dialect of the S3 protocol for an S3 server without authentication.
///
/// Available emulators implement only Google's JSON API. Two headers differ: the server ignores a token, and
/// "generation 0" becomes "If-None-Match: *".
pub(crate) struct GcsProxy {
    pub(crate) endpoint: String,
    task: JoinHandle<()>,
}

impl GcsProxy {
    pub(crate) async fn start(server: &str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = server.trim_start_matches("http://").to_owned();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = server.clone();
                // The client detects a broken connection.
                tokio::spawn(async move { translate_request(client, &server).await.ok() });
            }
        });
        Self { endpoint, task }
    }
}

impl Drop for GcsProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One request per connection: its head is rewritten, the rest is forwarded unchanged.
async fn translate_request(mut client: TcpStream, server: &str) -> std::io::Result<()> {
    let mut received = Vec::new();
    let end = loop {
        if let Some(at) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if client.read_buf(&mut received).await? == 0 || received.len() > MAX_HEAD_BYTES {
            return Ok(());
        }
    };
    let head = String::from_utf8_lossy(&received[..end]).into_owned();
    let mut lines = Vec::new();
    for line in head.split("\r\n") {
        match line.to_ascii_lowercase().split_once(':') {
            Some(("authorization" | "connection", _)) => {}
            Some(("x-goog-if-generation-match", _)) => lines.push("If-None-Match: *"),
            _ => lines.push(line),
        }
    }
    lines.push("Connection: close\r\n\r\n");
    let mut server = TcpStream::connect(server).await?;
    server.write_all(lines.join("\r\n").as_bytes()).await?;
    server.write_all(&received[end + 4..]).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}
