//! Certificates and keys of one API server, as files below its home directory.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};

use crate::ca::{CertificateAuthority, create_ca};

/// Directory of the certificates and keys.
#[derive(Debug)]
pub(super) struct Pki {
    directory: PathBuf,
}

impl Pki {
    /// Creates a CA, the certificates of server and administrator, and the signing key of service account
    /// tokens.
    pub(super) fn create(directory: PathBuf) -> Self {
        fs::create_dir(&directory).expect("create the directory of certificates");
        let pki = Self { directory };
        let authority = create_ca("test-ca").expect("create the CA");
        pki.write("ca.crt", &authority.pem());

        let mut server = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])
            .expect("names of the server certificate");
        server
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        pki.issue("apiserver", &server, &authority);

        let mut admin = CertificateParams::default();
        let name = &mut admin.distinguished_name;
        name.push(DnType::CommonName, "admin");
        name.push(DnType::OrganizationName, "system:masters");
        admin.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        pki.issue("admin", &admin, &authority);

        let accounts = KeyPair::generate().expect("generate a key");
        pki.write("accounts.key", &accounts.serialize_pem());
        pki.write("accounts.pub", &accounts.public_key_pem());
        pki
    }

    fn issue(&self, name: &str, params: &CertificateParams, ca: &CertificateAuthority) {
        let key = KeyPair::generate().expect("generate a key");
        let certificate = params.signed_by(&key, ca).expect("sign a certificate");
        self.write(&format!("{name}.crt"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.join(name), text).expect("write a certificate");
    }

    /// Path of a file.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes the kubeconfig of the administrator.
    pub(super) fn write_kubeconfig(&self, url: &str, path: &Path) {
        let file = |name| self.path(name).display().to_string();
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {
                "server": url, "certificate-authority": file("ca.crt"),
            }}],
            "users": [{"name": "admin", "user": {
                "client-certificate": file("admin.crt"), "client-key": file("admin.key"),
            }}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        });
        // JSON is valid YAML.
        fs::write(path, config.to_string()).expect("write a kubeconfig");
    }
}
