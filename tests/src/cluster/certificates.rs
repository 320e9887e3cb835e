//! The keys and certificates of a cluster, and the kubeconfigs made of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mainstay_testkit::authority::create_ca;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde_json::json;

use super::addresses::{API_SERVICE, NODE, NODE_NAME, api_url};
use super::home::ClusterHome;

/// Why a cluster has no certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificatesError {
    /// A key or certificate could not be made.
    #[error("make the certificate of {who}")]
    Issue {
        /// Whose.
        who: &'static str,
        /// Why.
        source: rcgen::Error,
    },
    /// A file could not be written.
    #[error("write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Somebody who proves with a certificate who they are.
struct CertificateSubject {
    file: &'static str,
    name: String,
    organization: Option<&'static str>,
    /// Names and addresses it serves under; a client has none.
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

/// Everybody with a certificate: names are those the rules every cluster starts with know.
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

/// Writes the authority, everybody's certificate and kubeconfig, and the key for tokens of service accounts.
pub(super) fn create_certificates(home: &ClusterHome) -> Result<(), CertificatesError> {
    let authority = create_ca("mainstay-cluster").map_err(issue_error("the authority"))?;
    write_file(&home.pki_file("ca.crt"), &authority.pem())?;
    for subject in all_subjects() {
        let key = KeyPair::generate().map_err(issue_error(subject.file))?;
        let certificate = certificate_params(&subject).and_then(|params| params.signed_by(&key, &authority));
        let certificate = certificate.map_err(issue_error(subject.file))?.pem();
        let key = key.serialize_pem();
        write_file(&home.pki_file(&format!("{}.crt", subject.file)), &certificate)?;
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

/// Holds all it needs, so that it can be copied elsewhere. JSON is YAML.
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
    fn every_client_has_a_kubeconfig_that_stands_alone() {
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
