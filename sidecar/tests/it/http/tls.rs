//! TLS: certificate rotation, and client certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_sidecar::http::{
    HttpConfig, HttpServeError, LeaderTlsFiles, Listeners, ServerTlsFiles,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use reqwest::{Certificate, Client, Identity, StatusCode};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

use super::support::{FakeSnapshotter, TEST_TIMEOUT, TestHttpServer, follower_state, test_config};

/// A CA and a directory for the certificates it issues.
struct TestCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

impl TestCa {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self {
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
            directory: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn to_certificate(&self) -> Certificate {
        Certificate::from_pem(self.issuer.pem().as_bytes()).unwrap()
    }

    /// Certificate and key for a name or address.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(vec![name.to_owned(), "127.0.0.2".to_owned()]).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        (signed.pem(), key.serialize_pem())
    }

    /// Server certificate files, replaced atomically as in a rotation.
    fn issue_server_files(&self) -> ServerTlsFiles {
        let (certificate, key) = self.sign("127.0.0.1");
        replace_file(&self.path("tls.crt"), &certificate);
        replace_file(&self.path("tls.key"), &key);
        ServerTlsFiles {
            certificate: self.path("tls.crt"),
            key: self.path("tls.key"),
            client_ca: None,
        }
    }

    /// Builder of a client that trusts this CA.
    fn client_builder(&self) -> reqwest::ClientBuilder {
        Client::builder()
            .tls_certs_only([self.to_certificate()])
            .tls_info(true)
    }

    fn issue_identity(&self) -> Identity {
        let (certificate, key) = self.sign("client");
        Identity::from_pem(format!("{certificate}{key}").as_bytes()).unwrap()
    }
}

fn replace_file(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

fn tls_config(tls: ServerTlsFiles) -> HttpConfig {
    HttpConfig {
        tls: Some(tls),
        ..test_config()
    }
}

/// The certificate that the server presents to a new connection.
async fn fetch_served_certificate(ca: &TestCa, server: &TestHttpServer) -> Vec<u8> {
    let client = ca.client_builder().build().unwrap();
    let response = client.get(server.url("/readyz")).send().await.unwrap();
    let info = response
        .extensions()
        .get::<reqwest::tls::TlsInfo>()
        .unwrap();
    info.peer_certificate().unwrap().to_vec()
}

/// Longer than the interval between two checks of the files.
async fn wait_for_recheck() {
    tokio::time::sleep(Duration::from_millis(1100)).await;
}

#[tokio::test]
async fn https_responses_have_the_etcd_backup_restore_headers() {
    let ca = TestCa::new();
    let server = TestHttpServer::start_leader(tls_config(ca.issue_server_files())).await;
    let client = ca.client_builder().build().unwrap();
    let response = client.get(server.url("/healthz")).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        response.headers()["strict-transport-security"],
        "max-age=31536000"
    );
    assert_eq!(
        response.headers()["content-security-policy"],
        "default-src 'self'"
    );
    let untrusting = Client::new().get(server.url("/healthz")).send().await;
    assert!(
        untrusting.is_err(),
        "a certificate of an unknown CA was accepted"
    );
    server.stop().await;
}

#[tokio::test]
async fn new_certificates_are_served_without_a_restart() {
    let ca = TestCa::new();
    let server = TestHttpServer::start_leader(tls_config(ca.issue_server_files())).await;
    let before = fetch_served_certificate(&ca, &server).await;
    assert_eq!(fetch_served_certificate(&ca, &server).await, before);
    ca.issue_server_files();
    wait_for_recheck().await;
    let after = fetch_served_certificate(&ca, &server).await;
    assert_ne!(after, before, "the old certificate is still in use");
    server.stop().await;
}

#[tokio::test]
async fn invalid_key_pair_keeps_the_old_one_until_it_is_valid() {
    let ca = TestCa::new();
    let server = TestHttpServer::start_leader(tls_config(ca.issue_server_files())).await;
    let before = fetch_served_certificate(&ca, &server).await;
    let (certificate, key) = ca.sign("127.0.0.1");
    for (name, text) in [
        ("tls.crt", certificate.as_str()), // its key is not replaced yet
        ("tls.crt", "nothing"),
        ("tls.key", "nothing"),
    ] {
        replace_file(&ca.path(name), text);
        wait_for_recheck().await;
        assert_eq!(
            fetch_served_certificate(&ca, &server).await,
            before,
            "{name}"
        );
    }
    fs::remove_file(ca.path("tls.crt")).unwrap();
    wait_for_recheck().await;
    assert_eq!(
        fetch_served_certificate(&ca, &server).await,
        before,
        "removed"
    );
    replace_file(&ca.path("tls.crt"), &certificate);
    replace_file(&ca.path("tls.key"), &key);
    wait_for_recheck().await;
    assert_ne!(fetch_served_certificate(&ca, &server).await, before);
    server.stop().await;
}

#[tokio::test]
async fn server_does_not_start_with_an_invalid_key_pair() {
    let ca = TestCa::new();
    let files = ca.issue_server_files();
    let (other, _) = ca.sign("127.0.0.1");
    for (name, text, expected) in [
        ("tls.crt", other.as_str(), "does not match key"),
        ("tls.crt", "", "contains no certificate"),
        ("tls.key", "", "contains no valid PEM private key"),
    ] {
        ca.issue_server_files();
        replace_file(&ca.path(name), text);
        let error = start_error(tls_config(files.clone())).await;
        assert!(error.contains(expected), "{error}");
        assert!(error.contains(name), "{error}");
    }
    let missing = ServerTlsFiles {
        client_ca: Some(ca.path("ca.crt")),
        ..ca.issue_server_files()
    };
    let error = start_error(tls_config(missing)).await;
    assert!(error.contains("ca.crt"), "{error}");
}

/// The error of a server that cannot start.
async fn start_error(config: HttpConfig) -> String {
    let listeners = Listeners::bind(&config).await.unwrap();
    let (_state_tx, state_rx) = tokio::sync::watch::channel(follower_state());
    let parts = mainstay_sidecar::http::HttpBackend {
        state_rx,
        snapshotter: std::sync::Arc::new(FakeSnapshotter::default()),
        leader_finder: std::sync::Arc::new(super::support::FakeLeaderFinder::default()),
        metrics: mainstay_sidecar::metrics::SidecarMetrics::new().unwrap(),
    };
    let served = listeners.serve(config, parts, tokio_util::sync::CancellationToken::new());
    match timeout(TEST_TIMEOUT, served).await.unwrap() {
        Err(HttpServeError::Tls { source }) => source.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn client_ca_restricts_snapshots_and_status_to_its_clients() {
    let (ca, other_ca) = (TestCa::new(), TestCa::new());
    fs::write(ca.path("ca.crt"), ca.issuer.pem()).unwrap();
    let files = ServerTlsFiles {
        client_ca: Some(ca.path("ca.crt")),
        ..ca.issue_server_files()
    };
    let server = TestHttpServer::start_leader(tls_config(files)).await;
    let anonymous = ca.client_builder().build().unwrap();
    let authenticated = ca
        .client_builder()
        .identity(ca.issue_identity())
        .build()
        .unwrap();
    let status = async |client: &Client, path: &str| {
        let sent = client.get(server.url(path)).send().await;
        sent.map(|response| response.status().as_u16()).ok()
    };
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(status(&anonymous, path).await, Some(200), "{path}");
        assert_eq!(status(&authenticated, path).await, Some(200), "{path}");
    }
    for path in [
        "/snapshot/full",
        "/snapshot/delta",
        "/snapshot/latest",
        "/status",
    ] {
        assert_eq!(status(&anonymous, path).await, Some(403), "{path}");
        assert_eq!(status(&authenticated, path).await, Some(200), "{path}");
    }
    let forger = ca
        .client_builder()
        .identity(other_ca.issue_identity())
        .build()
        .unwrap();
    assert_eq!(
        status(&forger, "/healthz").await,
        None,
        "a certificate of another CA was accepted"
    );
    assert_eq!(server.snapshotter.requests.lock().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn incomplete_tls_handshake_times_out() {
    let ca = TestCa::new();
    let mut config = tls_config(ca.issue_server_files());
    config.limits.handshake_timeout = Duration::from_millis(300);
    config.limits.max_connections_per_address = 1;
    let server = TestHttpServer::start_leader(config).await;
    let mut silent = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    silent.write_all(&[0x16, 0x03]).await.unwrap();
    let client = ca.client_builder().build().unwrap();
    let is_served = async {
        while client.get(server.url("/readyz")).send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, is_served)
        .await
        .expect("the only slot was not freed");
    server.stop().await;
}

#[tokio::test]
async fn plain_http_requests_to_a_tls_port_fail() {
    let ca = TestCa::new();
    let server = TestHttpServer::start_leader(tls_config(ca.issue_server_files())).await;
    let plain = server.url("/healthz").replace("https", "http");
    assert!(Client::new().get(plain).send().await.is_err());
    assert_ne!(
        fetch_served_certificate(&ca, &server).await,
        Vec::<u8>::new()
    );
    server.stop().await;
}

#[tokio::test]
async fn follower_and_leader_verify_each_others_certificates() {
    let ca = TestCa::new();
    fs::write(ca.path("ca.crt"), ca.issuer.pem()).unwrap();
    let files = ServerTlsFiles {
        client_ca: Some(ca.path("ca.crt")),
        ..ca.issue_server_files()
    };
    fs::write(ca.path("leader-ca.crt"), ca.issuer.pem()).unwrap();
    let leader_tls = LeaderTlsFiles {
        ca: Some(ca.path("leader-ca.crt")),
        identity: Some((files.certificate.clone(), files.key.clone())),
    };
    let follower = HttpConfig {
        leader_tls,
        ..tls_config(files.clone())
    };
    let follower =
        TestHttpServer::start(follower, follower_state(), FakeSnapshotter::default()).await;
    let leader_config = HttpConfig {
        listen_address: Some([127, 0, 0, 2].into()),
        port: follower.port,
        ..tls_config(files)
    };
    let leader = TestHttpServer::start_leader(leader_config).await;
    let url = Url::parse("https://127.0.0.2:2379").unwrap();
    *follower.leader_finder.0.lock().unwrap() = Some(url);
    let authenticated = ca
        .client_builder()
        .identity(ca.issue_identity())
        .build()
        .unwrap();
    let ask = async || {
        authenticated
            .post(follower.url("/snapshot/full"))
            .send()
            .await
            .unwrap()
    };
    assert_eq!(ask().await.status(), StatusCode::OK);
    assert_eq!(leader.snapshotter.requests.lock().unwrap().len(), 1);

    // With a CA that did not sign the leader's certificate, the follower does not forward the request.
    let other_ca = TestCa::new();
    replace_file(&ca.path("leader-ca.crt"), &other_ca.issuer.pem());
    assert_eq!(ask().await.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(leader.snapshotter.requests.lock().unwrap().len(), 1);
    follower.stop().await;
    leader.stop().await;
}
