//! The certificates and keys of one API server, as files below its home.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};

use crate::authority::{CertificateAuthority, create_ca};

/// Where the files are.
#[derive(Debug)]
pub(super) struct Pki {
    directory: PathBuf,
}

impl Pki {
    /// Makes an authority, the server's certificate, the administrator's, and the key that signs tokens of
    /// service accounts.
    pub(super) fn create(directory: PathBuf) -> Self {
        fs::create_dir(&directory).expect("a directory for certificates");
        let pki = Self { directory };
        let authority = create_ca("test-ca").expect("a certificate authority");
        pki.write("ca.crt", &authority.pem());

        let mut server = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])
            .expect("names of the server");
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

        let accounts = KeyPair::generate().expect("a key");
        pki.write("accounts.key", &accounts.serialize_pem());
        pki.write("accounts.pub", &accounts.public_key_pem());
        pki
    }

    fn issue(&self, name: &str, params: &CertificateParams, authority: &CertificateAuthority) {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, authority).expect("a certificate");
        self.write(&format!("{name}.crt"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.join(name), text).expect("write a certificate");
    }

    /// One of the files.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A kubeconfig of the administrator, beside the certificates it names.
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
        // JSON is YAML.
        fs::write(path, config.to_string()).expect("write a kubeconfig");
    }
}
