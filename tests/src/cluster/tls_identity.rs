//! The certificates of one Etcd: CA, server certificates (also for peers), and client certificates.

use std::fmt;
use std::sync::Arc;

use etcd_client::{Certificate, Identity as Shown, TlsOptions};
use mainstay_testkit::ca::{CertificateAuthority, create_ca};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde_json::{Value, json};

use super::addresses::DOMAIN;

/// CA and certificates to create an Etcd with TLS and to connect to it.
#[derive(Clone)]
pub struct TlsIdentity {
    ca: Arc<CertificateAuthority>,
    server: CertificatePem,
    client: CertificatePem,
    server_name: String,
    /// Name of the Etcd.
    etcd_name: String,
    /// DNS names in every server certificate.
    dns_names: Vec<String>,
}

/// The connections that use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncryptedConnections {
    /// Connections of clients.
    pub clients: bool,
    /// Connections between members.
    pub members: bool,
    /// Connections to sidecars.
    pub sidecars: bool,
}

impl EncryptedConnections {
    /// All connections.
    pub const ALL: Self = Self {
        clients: true,
        members: true,
        sidecars: true,
    };

    /// Every combination, including none and all.
    pub fn combinations() -> impl Iterator<Item = Self> {
        (0..8).map(|bits| Self {
            clients: bits & 1 != 0,
            members: bits & 2 != 0,
            sidecars: bits & 4 != 0,
        })
    }
}

#[derive(Clone, Debug)]
struct CertificatePem {
    certificate: String,
    key: String,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = out.debug_struct("Identity");
        told.field("names", &self.dns_names).finish_non_exhaustive()
    }
}

impl TlsIdentity {
    /// Creates CA and certificates for an Etcd.
    pub fn new(namespace: &str, name: &str) -> Result<Self, rcgen::Error> {
        let authority = create_ca("mainstay test CA")?;
        // etcd checks peers by a reverse lookup, which returns names with the cluster's domain.
        let dns_names = vec![
            format!("{name}-local"),
            format!("{name}-client.{namespace}.svc"),
            format!("*.{name}-peer.{namespace}.svc"),
            format!("*.{name}-peer.{namespace}.svc.{DOMAIN}"),
        ];
        Ok(Self {
            server: issue_certificate(&authority, dns_names.clone())?,
            client: issue_certificate(&authority, Vec::new())?,
            server_name: format!("{name}-local"),
            etcd_name: name.to_owned(),
            ca: Arc::new(authority),
            dns_names,
        })
    }

    /// Issues new certificates from the same CA. The new server certificates have the additional name `server_name`, which
    /// clients of this identity verify.
    pub fn renew(&self, server_name: &str) -> Result<Self, rcgen::Error> {
        let mut dns_names = self.dns_names.clone();
        dns_names.push(server_name.to_owned());
        Ok(Self {
            server: issue_certificate(&self.ca, dns_names.clone())?,
            client: issue_certificate(&self.ca, Vec::new())?,
            server_name: server_name.to_owned(),
            etcd_name: self.etcd_name.clone(),
            ca: Arc::clone(&self.ca),
            dns_names,
        })
    }

    /// The Secrets: CA, server certificate, client certificate.
    pub(super) fn to_secrets(&self) -> [(String, Value); 3] {
        let pair =
            |pair: &CertificatePem| json!({"tls.crt": pair.certificate, "tls.key": pair.key});
        let values = [
            json!({"ca.crt": self.ca.pem()}),
            pair(&self.server),
            pair(&self.client),
        ];
        let names = self.secret_names();
        let mut values = values.into_iter();
        names.map(|name| (name, values.next().unwrap_or_default()))
    }

    fn secret_names(&self) -> [String; 3] {
        ["ca", "server", "client"].map(|what| format!("{what}-{}", self.etcd_name))
    }

    /// Enables TLS in a spec.
    pub(super) fn add_to_spec(&self, spec: &mut Value, encrypted: EncryptedConnections) {
        let [authority, server, client] = self.secret_names();
        let members = json!({
            "tlsCASecretRef": {"name": authority}, "serverTLSSecretRef": {"name": server},
        });
        let mut clients = members.clone();
        clients["clientTLSSecretRef"] = json!({"name": client});
        if encrypted.clients {
            spec["etcd"]["clientUrlTls"] = clients.clone();
        }
        if encrypted.members {
            spec["etcd"]["peerUrlTls"] = members;
        }
        if encrypted.sidecars {
            spec["backup"]["tls"] = clients;
        }
    }

    /// Client options that do not depend on the address.
    pub(super) fn tls_options(&self) -> TlsOptions {
        let CertificatePem { certificate, key } = &self.client;
        TlsOptions::new()
            .ca_certificate(Certificate::from_pem(self.ca.pem()))
            .identity(Shown::from_pem(certificate, key))
            .domain_name(&self.server_name)
    }
}

/// Issues a certificate for server and client authentication: members use theirs for both.
fn issue_certificate(
    authority: &CertificateAuthority,
    names: Vec<String>,
) -> Result<CertificatePem, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, "etcd");
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    Ok(CertificatePem {
        certificate: params.signed_by(&key, authority)?.pem(),
        key: key.serialize_pem(),
    })
}
