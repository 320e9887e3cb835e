//! Rights of client certificates.

use std::path::{Path, PathBuf};

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::process::ServerProcess;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn create() -> Self {
        let key = KeyPair::generate().expect("a valid fixture");
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("a valid fixture");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("a valid fixture").pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a valid fixture");
        let mut params =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a valid fixture");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("a valid fixture");
        (certificate.pem(), key.serialize_pem())
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a valid fixture");
    path
}

async fn connect(server: &ServerProcess, ca: &Authority, name: &str) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (certificate, key) = ca.issue(name);
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(&ca.pem))
        .identity(Identity::from_pem(certificate, key));
    let options = ConnectOptions::new().with_tls(tls);
    Client::connect([server.url()], Some(options))
        .await
        .expect("a valid fixture")
}

fn text<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::GRpcStatus(status)) => format!("{:?}: {}", status.code(), status.message()),
        other => unreachable!("the request is refused: {other:?}"),
    }
}

#[tokio::test]
async fn principals_have_the_rights_of_their_certificates() {
    let scratch = tempfile::tempdir().unwrap();
    let ca = Authority::create();
    let (certificate, key) = ca.issue("server");
    let cert = write(scratch.path(), "cert.pem", &certificate);
    let key = write(scratch.path(), "key.pem", &key);
    let client_ca = write(scratch.path(), "ca.pem", &ca.pem);
    let server = ServerProcess::launch(
        &[
            "--cert",
            cert.to_str().unwrap(),
            "--key",
            key.to_str().unwrap(),
            "--client-ca",
            client_ca.to_str().unwrap(),
            "--grant",
            "apiserver=read,write",
            "--grant",
            "auditor=read",
        ],
        "https",
    );
    server.wait_until_healthy().await;
    let denied = "PermissionDenied: etcdserver: permission denied";

    let mut apiserver = connect(&server, &ca, "apiserver").await;
    apiserver.put("k", "1", None).await.unwrap();
    assert_eq!(text(apiserver.hash().await), denied);
    let mut auditor = connect(&server, &ca, "auditor").await;
    assert_eq!(auditor.get("k", None).await.unwrap().kvs().len(), 1);
    assert_eq!(text(auditor.put("k", "2", None).await), denied);
    let mut stranger = connect(&server, &ca, "stranger").await;
    assert_eq!(text(stranger.get("k", None).await), denied);
}

#[tokio::test]
async fn large_request_is_refused_with_the_text_of_etcd() {
    let server = ServerProcess::start(&["--engine", "memory"]).await;
    let mut client = server.client().await;
    client.put("k", vec![0; 1_500_000], None).await.unwrap();
    let refused = client.put("k", vec![0; 1_600_000], None).await;
    assert_eq!(
        text(refused),
        "InvalidArgument: etcdserver: request is too large"
    );
}
