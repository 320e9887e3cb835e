//! Creates the keys, certificates and kubeconfigs of a cluster.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mainstay_testkit::ca::create_ca;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde_json::json;

use super::addresses::{API_SERVICE, NODE, NODE_NAME, api_url};
use super::home::ClusterHome;

/// Why certificates could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificatesError {
    /// A key or certificate could not be created.
    #[error("failed to create the certificate of {who}")]
    Issue {
        /// Subject of the certificate.
        who: &'static str,
        /// Underlying error.
        source: rcgen::Error,
    },
    /// A file could not be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
}

/// Holder of a certificate.
struct CertificateSubject {
    file: &'static str,
    name: String,
    organization: Option<&'static str>,
    /// DNS names and addresses of a server; empty for a client.
    server_names: Vec<String>,
}

impl CertificateSubject {
    fn client(
        file: &'static str,
        name: impl Into<String>,
        organization: Option<&'static str>,
    ) -> Self {
        Self {
            file,
            name: name.into(),
            organization,
            server_names: Vec::new(),
        }
    }
}

/// All holders of certificates. The names are those of Kubernetes' default RBAC bindings.
fn all_subjects() -> [CertificateSubject; 6] {
    let api_names = [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "127.0.0.1",
    ];
    let api_addresses = [NODE, API_SERVICE].map(|address| address.to_string());
    let kubelet = format!("system:node:{NODE_NAME}");
    [
        CertificateSubject {
            server_names: api_names
                .map(str::to_owned)
                .into_iter()
                .chain(api_addresses)
                .collect(),
            ..CertificateSubject::client("apiserver", "kube-apiserver", None)
        },
        CertificateSubject {
            server_names: vec![NODE_NAME.to_owned(), NODE.to_string()],
            ..CertificateSubject::client("kubelet", kubelet, Some("system:nodes"))
        },
        CertificateSubject::client("admin", "admin", Some("system:masters")),
        CertificateSubject::client(
            "kube-controller-manager",
            "system:kube-controller-manager",
            None,
        ),
        CertificateSubject::client("kube-scheduler", "system:kube-scheduler", None),
        CertificateSubject::client("kube-proxy", "system:kube-proxy", None),
    ]
}

/// Writes the CA, all certificates and kubeconfigs, and the key that signs service account tokens.
pub(super) fn create_certificates(home: &ClusterHome) -> Result<(), CertificatesError> {
    let authority = create_ca("mainstay-cluster").map_err(issue_error("the CA"))?;
    write_file(&home.pki_file("ca.crt"), &authority.pem())?;
    for subject in all_subjects() {
        let key = KeyPair::generate().map_err(issue_error(subject.file))?;
        let certificate =
            certificate_params(&subject).and_then(|params| params.signed_by(&key, &authority));
        let certificate = certificate.map_err(issue_error(subject.file))?.pem();
        let key = key.serialize_pem();
        write_file(
            &home.pki_file(&format!("{}.crt", subject.file)),
            &certificate,
        )?;
        write_file(&home.pki_file(&format!("{}.key", subject.file)), &key)?;
        let config = render_kubeconfig(&authority.pem(), &certificate, &key);
        write_file(&home.component_kubeconfig(subject.file), &config)?;
    }
    let admin = home.component_kubeconfig("admin");
    fs::rename(&admin, home.kubeconfig()).map_err(|source| CertificatesError::Write {
        path: admin,
        source,
    })?;
    let accounts = KeyPair::generate().map_err(issue_error("service accounts"))?;
    write_file(&home.pki_file("accounts.key"), &accounts.serialize_pem())?;
    write_file(&home.pki_file("accounts.pub"), &accounts.public_key_pem())
}

fn issue_error(who: &'static str) -> impl Fn(rcgen::Error) -> CertificatesError {
    move |source| CertificatesError::Issue { who, source }
}

fn write_file(path: &Path, text: &str) -> Result<(), CertificatesError> {
    fs::write(path, text).map_err(|source| CertificatesError::Write {
        path: path.to_owned(),
        source,
    })
}

fn certificate_params(subject: &CertificateSubject) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(subject.server_names.clone())?;
    params
        .distinguished_name
        .push(DnType::CommonName, subject.name.as_str());
    if let Some(organization) = subject.organization {
        params
            .distinguished_name
            .push(DnType::OrganizationName, organization);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !subject.server_names.is_empty() {
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    Ok(params)
}

/// A kubeconfig with embedded certificates, so that the file can be copied. JSON is valid YAML.
fn render_kubeconfig(authority: &str, certificate: &str, key: &str) -> String {
    let data = |pem: &str| base64_simd::STANDARD.encode_to_string(pem);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "mainstay", "cluster": {
            "server": api_url(), "certificate-authority-data": data(authority),
        }}],
        "users": [{"name": "mainstay", "user": {
            "client-certificate-data": data(certificate), "client-key-data": data(key),
        }}],
        "contexts": [{"name": "mainstay", "context": {"cluster": "mainstay", "user": "mainstay"}}],
        "current-context": "mainstay",
    });
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;

    use super::*;

    #[test]
    fn every_client_has_a_self_contained_kubeconfig() {
        let directory = tempfile::tempdir().unwrap();
        let home = ClusterHome::new(directory.path());
        fs::create_dir(directory.path().join("pki")).unwrap();
        create_certificates(&home).unwrap();
        fs::remove_dir_all(directory.path().join("pki")).unwrap();
        let clients = [
            "kubelet",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-proxy",
        ];
        let files = clients
            .map(|who| home.component_kubeconfig(who))
            .into_iter()
            .chain([home.kubeconfig()]);
        for file in files {
            let config = Kubeconfig::read_from(&file).unwrap();
            let user = config.auth_infos[0].auth_info.as_ref().unwrap();
            assert!(user.client_certificate.is_none() && user.client_certificate_data.is_some());
        }
    }
}
