//! Real servers on loopback ports, started for one test and stopped with it.
//!
//! Programs are found through the variables that `make test` sets. Without them a test fails instead of
//! skipping, because a skipped test proves nothing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainstay_testkit::ports::free_ports;
use object_store::ClientOptions;
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpConnector, HttpRequest, HttpRequestBody, ReqwestConnector};
use tempfile::TempDir;

/// Startup timeout, for a busy machine.
const STARTUP_TIMEOUT: Duration = Duration::from_mins(3);

/// A running program. Dropping it kills the program and prints its log if the test failed.
pub(crate) struct TestServer {
    child: Child,
    log: PathBuf,
    pub(crate) directory: TempDir,
}

impl TestServer {
    fn start(name: &str, mut command: Command, directory: TempDir) -> Self {
        let log = directory.path().join(format!("{name}.log"));
        let output = File::create(&log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self {
            child,
            log,
            directory,
        }
    }

    /// Waits until `url` answers with `status`.
    async fn wait_for(&mut self, url: &str, status: u16) {
        let deadline = Instant::now() + STARTUP_TIMEOUT;
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(5))
            .danger_accept_invalid_certs(true)
            .build()
            .unwrap();
        while Instant::now() < deadline {
            if let Some(exit) = self.child.try_wait().unwrap() {
                panic!("the server exited with {exit}");
            }
            if client
                .get(url)
                .send()
                .await
                .is_ok_and(|answer| answer.status() == status)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{url} did not answer within {STARTUP_TIMEOUT:?}");
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines.len().saturating_sub(60);
            eprintln!("--- {}\n{}", self.log.display(), lines[tail..].join("\n"));
        }
    }
}

/// The program that a variable names.
#[expect(
    clippy::disallowed_methods,
    reason = "make test passes program paths in variables"
)]
fn find_program(variable: &str) -> PathBuf {
    match std::env::var(variable) {
        Ok(path) if Path::new(&path).is_file() => path.into(),
        Ok(path) => panic!("{variable} is {path}, which is not a file; run `make test`"),
        Err(error) => panic!("{variable}: {error}; run `make test`, which installs the server"),
    }
}

/// Access control of the S3 server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Keys,
    Anonymous,
}

/// `SeaweedFS`: a real S3 server.
pub(crate) struct SeaweedFs {
    pub(crate) server: TestServer,
    pub(crate) endpoint: String,
    filer: String,
    sockets: Vec<PathBuf>,
}

impl Drop for SeaweedFs {
    fn drop(&mut self) {
        for socket in &self.sockets {
            // Not all of these files exist.
            let _ = fs::remove_file(socket);
        }
    }
}

/// A certificate and its key, as PEM.
pub(crate) struct Certificate {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl SeaweedFs {
    pub(crate) const BUCKET: &str = "backups";
    pub(crate) const KEY_ID: &str = "AKIDMAINSTAYTEST";
    pub(crate) const SECRET: &str = "weed-secret-that-must-not-leak";

    pub(crate) async fn start(access: Access) -> Self {
        Self::start_with(access, None).await
    }

    /// The same server behind TLS.
    pub(crate) async fn start_tls(certificate: &Certificate) -> Self {
        Self::start_with(Access::Keys, Some(certificate)).await
    }

    async fn start_with(access: Access, tls: Option<&Certificate>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = free_ports();
        let mut command = Self::build_command(directory.path(), ports, access);
        let mut scheme = "http";
        if let Some(tls) = tls {
            let files = [("tls.crt", &tls.certificate), ("tls.key", &tls.key)];
            let [certificate, key] = files.map(|(name, pem)| {
                let path = directory.path().join(name);
                fs::write(&path, pem).unwrap();
                path
            });
            command.arg(format!("-s3.cert.file={}", certificate.display()));
            command.arg(format!("-s3.key.file={}", key.display()));
            scheme = "https";
        }
        let mut server = TestServer::start("weed", command, directory);
        let [.., filer, _, s3, _] = ports;
        let endpoint = format!("{scheme}://127.0.0.1:{s3}");
        server.wait_for(&format!("{endpoint}/healthz"), 200).await;
        let filer = format!("http://127.0.0.1:{filer}/buckets/{}", Self::BUCKET);
        Self::create_bucket(&filer).await;
        // A killed server leaves these files outside its directory.
        let names = [
            "master-grpc",
            "volume-grpc",
            "filer",
            "filer-grpc",
            "s3",
            "s3-grpc",
        ];
        let sockets = ports.iter().flat_map(|port| {
            names.map(|name| PathBuf::from(format!("/tmp/seaweedfs-{name}-{port}.sock")))
        });
        Self {
            server,
            endpoint,
            filer,
            sockets: sockets.collect(),
        }
    }

    fn build_command(directory: &Path, ports: [u16; 8], access: Access) -> Command {
        let config = directory.join("s3.json");
        fs::write(&config, Self::render_identities(access)).unwrap();
        let [
            master,
            master_grpc,
            volume,
            volume_grpc,
            filer,
            filer_grpc,
            s3,
            s3_grpc,
        ] = ports;
        let mut command = Command::new(find_program("MAINSTAY_WEED"));
        command
            .arg("server")
            .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"])
            .args([
                "-master.telemetry=false",
                "-volume.max=50",
                "-master.volumeSizeLimitMB=128",
            ])
            .args(["-s3.port.iceberg=0", "-s3.port.lance=0"])
            .arg(format!("-dir={}", directory.display()))
            .arg(format!("-s3.config={}", config.display()))
            .arg(format!("-master.port={master}"))
            .arg(format!("-master.port.grpc={master_grpc}"))
            .arg(format!("-volume.port={volume}"))
            .arg(format!("-volume.port.grpc={volume_grpc}"))
            .arg(format!("-filer.port={filer}"))
            .arg(format!("-filer.port.grpc={filer_grpc}"))
            .arg(format!("-s3.port={s3}"))
            .arg(format!("-s3.port.grpc={s3_grpc}"));
        command
    }

    fn render_identities(access: Access) -> String {
        let actions = ["Admin", "Read", "List", "Tagging", "Write"];
        let mut identities = vec![serde_json::json!({
            "name": "mainstay",
            "credentials": [{ "accessKey": Self::KEY_ID, "secretKey": Self::SECRET }],
            "actions": actions,
        })];
        if access == Access::Anonymous {
            identities.push(serde_json::json!({ "name": "anonymous", "actions": actions }));
        }
        serde_json::json!({ "identities": identities }).to_string()
    }

    /// A bucket is a directory of the filer.
    async fn create_bucket(filer: &str) {
        let deadline = Instant::now() + STARTUP_TIMEOUT;
        loop {
            let answer = reqwest::Client::new()
                .post(format!("{filer}/"))
                .send()
                .await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the filer did not create the bucket"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Multipart uploads that were neither completed nor aborted.
    pub(crate) async fn list_unfinished_uploads(&self) -> Vec<String> {
        let answer = reqwest::Client::new()
            .get(format!("{}/.uploads/", self.filer))
            .header("Accept", "application/json")
            .send()
            .await
            .unwrap();
        if answer.status() == 404 {
            return Vec::new();
        }
        let listing: serde_json::Value = answer.json().await.unwrap();
        let entries = listing["Entries"].as_array().cloned().unwrap_or_default();
        entries
            .iter()
            .map(|entry| entry["FullPath"].to_string())
            .collect()
    }
}

/// Azurite: Microsoft's own emulator of blob storage.
pub(crate) struct Azurite {
    pub(crate) server: TestServer,
    pub(crate) endpoint: String,
}

impl Azurite {
    pub(crate) const CONTAINER: &str = "backups";
    pub(crate) const ACCOUNT: &str = "mainstay";
    /// Base64, as storage keys are.
    pub(crate) const KEY: &str = "c3Rld2FyZC1henVyaXRlLWtleS10aGF0LW11c3Qtbm90LWxlYWs=";

    pub(crate) async fn start() -> Self {
        let program = find_program("MAINSTAY_AZURITE");
        let directory = tempfile::tempdir().unwrap();
        let [port] = free_ports();
        let mut command = Command::new(program);
        command
            .env(
                "AZURITE_ACCOUNTS",
                format!("{}:{}", Self::ACCOUNT, Self::KEY),
            )
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
            .args(["--skipApiVersionCheck", "--disableTelemetry", "--location"])
            .arg(directory.path());
        let mut server = TestServer::start("azurite", command, directory);
        let endpoint = format!("http://127.0.0.1:{port}/{}", Self::ACCOUNT);
        // Without credentials it responds with 403.
        server.wait_for(&format!("{endpoint}?comp=list"), 403).await;
        let azurite = Self { server, endpoint };
        azurite.create_container().await;
        azurite
    }

    /// The store never creates containers, so the test signs the request itself.
    async fn create_container(&self) {
        let url = format!("{}/{}?restype=container", self.endpoint, Self::CONTAINER);
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = "PUT".parse().unwrap();
        *request.uri_mut() = url.parse().unwrap();
        request
            .headers_mut()
            .insert("content-length", "0".parse().unwrap());
        let key = AzureCredential::AccessKey(AzureAccessKey::try_new(Self::KEY).unwrap());
        AzureAuthorizer::new(&key, Self::ACCOUNT)
            .try_authorize(&mut request)
            .unwrap();
        let options = ClientOptions::new().with_allow_http(true);
        let client = ReqwestConnector::default().connect(&options).unwrap();
        let answer = client.execute(request).await.unwrap();
        assert_eq!(answer.status(), 201, "create the container");
    }
}
