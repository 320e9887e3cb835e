//! Certificates of one Etcd: an authority, what servers and members show, and what clients show.

use etcd_client::{Certificate, Identity as Shown, TlsOptions};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};

use super::addresses::DOMAIN;

/// The secret with the authority.
const AUTHORITY: &str = "ca-etcd";
/// The secret of servers and members.
const SERVER: &str = "server-etcd";
/// The secret of clients.
const CLIENT: &str = "client-etcd";

/// What is needed to be a client of an encrypted Etcd, and to make one.
#[derive(Clone, Debug)]
pub struct Identity {
    authority: String,
    server: Pair,
    client: Pair,
    server_name: String,
}

#[derive(Clone, Debug)]
struct Pair {
    certificate: String,
    key: String,
}

impl Identity {
    /// Makes one, for an Etcd of a namespace.
    pub fn new(namespace: &str, name: &str) -> Result<Self, rcgen::Error> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "an authority of tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        // Members look up who calls them: the name they find ends with the cluster's domain.
        let names = vec![
            format!("{name}-local"),
            format!("{name}-client.{namespace}.svc"),
            format!("*.{name}-peer.{namespace}.svc"),
            format!("*.{name}-peer.{namespace}.svc.{DOMAIN}"),
        ];
        Ok(Self {
            authority: authority.pem(),
            server: pair(&authority, names)?,
            client: pair(&authority, Vec::new())?,
            server_name: format!("{name}-local"),
        })
    }

    /// The secrets that hold it.
    pub(super) fn secrets(&self) -> [(&'static str, Value); 3] {
        let pair = |pair: &Pair| json!({"tls.crt": pair.certificate, "tls.key": pair.key});
        [
            (AUTHORITY, json!({"ca.crt": self.authority})),
            (SERVER, pair(&self.server)),
            (CLIENT, pair(&self.client)),
        ]
    }

    /// Asks a spec for encryption everywhere: clients, members, sidecars.
    pub(super) fn ask_for(spec: &mut Value) {
        let members = json!({
            "tlsCASecretRef": {"name": AUTHORITY}, "serverTLSSecretRef": {"name": SERVER},
        });
        let mut clients = members.clone();
        clients["clientTLSSecretRef"] = json!({"name": CLIENT});
        spec["etcd"]["clientUrlTls"] = clients.clone();
        spec["etcd"]["peerUrlTls"] = members;
        spec["backup"]["tls"] = clients;
    }

    /// How a client connects, by whichever address.
    pub(super) fn tls(&self) -> TlsOptions {
        let Pair { certificate, key } = &self.client;
        TlsOptions::new()
            .ca_certificate(Certificate::from_pem(&self.authority))
            .identity(Shown::from_pem(certificate, key))
            .domain_name(&self.server_name)
    }
}

/// One that may be shown by servers and by clients, as members do both.
fn pair(
    authority: &CertifiedIssuer<'static, KeyPair>,
    names: Vec<String>,
) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "etcd");
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    Ok(Pair {
        certificate: params.signed_by(&key, authority)?.pem(),
        key: key.serialize_pem(),
    })
}
