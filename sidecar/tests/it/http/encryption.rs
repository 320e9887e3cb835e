//! TLS: certificates that change, callers that must have one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_sidecar::http::{LeaderTlsFiles, HttpConfig, Listeners, HttpServeError, ServerTlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use reqwest::{Certificate, Client, Identity, StatusCode};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

use super::support::{TEST_TIMEOUT, TestHttpServer, FakeSnapshotter, test_config, follower_state};

/// An authority and a directory for what it signs.
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

    /// Files of a server; replaced as a rotation does it.
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

    /// A caller that trusts this authority.
    fn client_builder(&self) -> reqwest::ClientBuilder {
        Client::builder()
            .tls_certs_only([self.to_certificate()])
            .tls_info(true)
    }

    fn issue_identity(&self) -> Identity {
        let (certificate, key) = self.sign("somebody");
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

/// The certificate a new connection gets.
async fn fetch_served_certificate(authority: &TestCa, server: &TestHttpServer) -> Vec<u8> {
    let client = authority.client_builder().build().unwrap();
    let answer = client.get(server.url("/readyz")).send().await.unwrap();
    let info = answer.extensions().get::<reqwest::tls::TlsInfo>().unwrap();
    info.peer_certificate().unwrap().to_vec()
}

/// Longer than certificates are believed without a look at their files.
async fn wait_for_recheck() {
    tokio::time::sleep(Duration::from_millis(1100)).await;
}

#[tokio::test]
async fn https_is_served_with_the_headers_of_the_peer() {
    let authority = TestCa::new();
    let server = TestHttpServer::start_leader(tls_config(authority.issue_server_files())).await;
    let client = authority.client_builder().build().unwrap();
    let answer = client.get(server.url("/healthz")).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(
        answer.headers()["strict-transport-security"],
        "max-age=31536000"
    );
    assert_eq!(
        answer.headers()["content-security-policy"],
        "default-src 'self'"
    );
    let stranger = Client::new().get(server.url("/healthz")).send().await;
    assert!(stranger.is_err(), "a certificate of nobody was accepted");
    server.stop().await;
}

#[tokio::test]
async fn new_certificates_are_served_without_a_restart() {
    let authority = TestCa::new();
    let server = TestHttpServer::start_leader(tls_config(authority.issue_server_files())).await;
    let before = fetch_served_certificate(&authority, &server).await;
    assert_eq!(fetch_served_certificate(&authority, &server).await, before);
    authority.issue_server_files();
    wait_for_recheck().await;
    let after = fetch_served_certificate(&authority, &server).await;
    assert_ne!(after, before, "the old certificate is still shown");
    server.stop().await;
}

#[tokio::test]
async fn a_broken_pair_leaves_the_old_one_in_place_until_it_is_whole() {
    let authority = TestCa::new();
    let server = TestHttpServer::start_leader(tls_config(authority.issue_server_files())).await;
    let before = fetch_served_certificate(&authority, &server).await;
    let (certificate, key) = authority.sign("127.0.0.1");
    for (name, text) in [
        ("tls.crt", certificate.as_str()), // whose key is not there yet
        ("tls.crt", "nothing"),
        ("tls.key", "nothing"),
    ] {
        replace_file(&authority.path(name), text);
        wait_for_recheck().await;
        assert_eq!(fetch_served_certificate(&authority, &server).await, before, "{name}");
    }
    fs::remove_file(authority.path("tls.crt")).unwrap();
    wait_for_recheck().await;
    assert_eq!(fetch_served_certificate(&authority, &server).await, before, "removed");
    replace_file(&authority.path("tls.crt"), &certificate);
    replace_file(&authority.path("tls.key"), &key);
    wait_for_recheck().await;
    assert_ne!(fetch_served_certificate(&authority, &server).await, before);
    server.stop().await;
}

#[tokio::test]
async fn a_server_does_not_start_with_a_broken_pair() {
    let authority = TestCa::new();
    let files = authority.issue_server_files();
    let (other, _) = authority.sign("127.0.0.1");
    for (name, text, expected) in [
        ("tls.crt", other.as_str(), "are no pair"),
        ("tls.crt", "", "holds no certificate"),
        ("tls.key", "", "holds no readable private key"),
    ] {
        authority.issue_server_files();
        replace_file(&authority.path(name), text);
        let error = start_error(tls_config(files.clone())).await;
        assert!(error.contains(expected), "{error}");
        assert!(error.contains(name), "{error}");
    }
    let missing = ServerTlsFiles {
        client_ca: Some(authority.path("ca.crt")),
        ..authority.issue_server_files()
    };
    let error = start_error(tls_config(missing)).await;
    assert!(error.contains("ca.crt"), "{error}");
}

/// What a server says that cannot be started.
async fn start_error(config: HttpConfig) -> String {
    let listeners = Listeners::bind(&config).await.unwrap();
    let (_state_tx, view) = tokio::sync::watch::channel(follower_state());
    let parts = mainstay_sidecar::http::HttpBackend {
        state_rx: view,
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
async fn with_an_authority_only_its_clients_take_snapshots_and_read_the_status() {
    let (authority, strangers) = (TestCa::new(), TestCa::new());
    fs::write(authority.path("ca.crt"), authority.issuer.pem()).unwrap();
    let files = ServerTlsFiles {
        client_ca: Some(authority.path("ca.crt")),
        ..authority.issue_server_files()
    };
    let server = TestHttpServer::start_leader(tls_config(files)).await;
    let anybody = authority.client_builder().build().unwrap();
    let known = authority
        .client_builder()
        .identity(authority.issue_identity())
        .build()
        .unwrap();
    let status = async |client: &Client, path: &str| {
        let sent = client.get(server.url(path)).send().await;
        sent.map(|answer| answer.status().as_u16()).ok()
    };
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(status(&anybody, path).await, Some(200), "{path}");
        assert_eq!(status(&known, path).await, Some(200), "{path}");
    }
    for path in [
        "/snapshot/full",
        "/snapshot/delta",
        "/snapshot/latest",
        "/status",
    ] {
        assert_eq!(status(&anybody, path).await, Some(403), "{path}");
        assert_eq!(status(&known, path).await, Some(200), "{path}");
    }
    let forger = authority
        .client_builder()
        .identity(strangers.issue_identity())
        .build()
        .unwrap();
    assert_eq!(
        status(&forger, "/healthz").await,
        None,
        "a forged certificate was let in"
    );
    assert_eq!(server.snapshotter.requests.lock().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_not_waited_for() {
    let authority = TestCa::new();
    let mut config = tls_config(authority.issue_server_files());
    config.limits.handshake_timeout = Duration::from_millis(300);
    config.limits.max_connections_per_address = 1;
    let server = TestHttpServer::start_leader(config).await;
    let mut silent = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    silent.write_all(&[0x16, 0x03]).await.unwrap();
    let client = authority.client_builder().build().unwrap();
    let is_served = async {
        while client.get(server.url("/readyz")).send().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, is_served)
        .await
        .expect("the only place stays taken");
    server.stop().await;
}

#[tokio::test]
async fn plain_requests_to_a_tls_port_get_nothing() {
    let authority = TestCa::new();
    let server = TestHttpServer::start_leader(tls_config(authority.issue_server_files())).await;
    let plain = server.url("/healthz").replace("https", "http");
    assert!(Client::new().get(plain).send().await.is_err());
    assert_ne!(fetch_served_certificate(&authority, &server).await, Vec::<u8>::new());
    server.stop().await;
}

#[tokio::test]
async fn a_follower_shows_its_certificate_to_the_leader_and_checks_the_leaders() {
    let authority = TestCa::new();
    fs::write(authority.path("ca.crt"), authority.issuer.pem()).unwrap();
    let files = ServerTlsFiles {
        client_ca: Some(authority.path("ca.crt")),
        ..authority.issue_server_files()
    };
    fs::write(authority.path("leader-ca.crt"), authority.issuer.pem()).unwrap();
    let delegation = LeaderTlsFiles {
        ca: Some(authority.path("leader-ca.crt")),
        identity: Some((files.certificate.clone(), files.key.clone())),
    };
    let follower = HttpConfig {
        leader_tls: delegation,
        ..tls_config(files.clone())
    };
    let follower = TestHttpServer::start(follower, follower_state(), FakeSnapshotter::default()).await;
    let there = HttpConfig {
        listen_address: Some([127, 0, 0, 2].into()),
        port: follower.port,
        ..tls_config(files)
    };
    let leader = TestHttpServer::start_leader(there).await;
    let url = Url::parse("https://127.0.0.2:2379").unwrap();
    *follower.leader_finder.0.lock().unwrap() = Some(url);
    let known = authority
        .client_builder()
        .identity(authority.issue_identity())
        .build()
        .unwrap();
    let ask = async || {
        known
            .post(follower.url("/snapshot/full"))
            .send()
            .await
            .unwrap()
    };
    assert_eq!(ask().await.status(), StatusCode::OK);
    assert_eq!(leader.snapshotter.requests.lock().unwrap().len(), 1);

    // An authority that did not sign the leader's certificate: nothing is asked of it.
    let stranger = TestCa::new();
    replace_file(&authority.path("leader-ca.crt"), &stranger.issuer.pem());
    assert_eq!(ask().await.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(leader.snapshotter.requests.lock().unwrap().len(), 1);
    follower.stop().await;
    leader.stop().await;
}
