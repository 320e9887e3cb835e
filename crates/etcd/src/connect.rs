//! Connects with certificates and a login.

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};

use crate::request::{RequestError, with_deadline};

/// A file with a certificate, key or password cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("failed to read {}", path.display())]
pub struct CredentialFileError {
    /// The file.
    pub path: PathBuf,
    /// Why it cannot be read.
    pub source: std::io::Error,
}

/// Files with certificates and a key, PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// CAs that verify etcd's certificate.
    pub ca: Option<PathBuf>,
    /// Client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub async fn load(&self) -> Result<TlsMaterial, CredentialFileError> {
        let mut material = TlsMaterial::default();
        if let Some(ca) = &self.ca {
            material.ca = Some(read_file(ca).await?);
        }
        if let Some((certificate, key)) = &self.identity {
            material.identity = Some((read_file(certificate).await?, read_file(key).await?));
        }
        Ok(material)
    }

    /// Returns the paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let identity = self.identity.iter().flat_map(|(cert, key)| [cert, key]);
        self.ca.iter().chain(identity)
    }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, CredentialFileError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| CredentialFileError {
            path: path.to_owned(),
            source,
        })
}

/// Certificates and a key, PEM-encoded. Has no `Debug`: the key must not be logged.
#[derive(Clone, Default)]
pub struct TlsMaterial {
    /// CAs that verify etcd's certificate.
    pub ca: Option<Vec<u8>>,
    /// Client certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Name to verify in the certificate; `None` for the host of the URL.
    pub server_name: Option<String>,
}

impl TlsMaterial {
    fn into_options(self) -> TlsOptions {
        let mut tls = TlsOptions::new();
        if let Some(ca) = self.ca {
            tls = tls.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some(name) = self.server_name {
            tls = tls.domain_name(name);
        }
        if let Some((certificate, key)) = self.identity {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        tls
    }
}

/// User of etcd. Has no `Debug`: the password must not be logged.
#[derive(Clone)]
pub struct Login {
    /// Name of the user.
    pub name: String,
    /// Its password.
    pub password: String,
}

/// HTTP/2 pings, also without requests: a stream of a member that vanished without closing the connection ends after the
/// sum of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Time between two pings.
    pub interval: Duration,
    /// Longest wait for the answer.
    pub timeout: Duration,
}

/// How to connect.
#[derive(Clone)]
pub struct ConnectSettings {
    /// Timeout of connecting and logging in.
    pub connect_timeout: Duration,
    /// Timeout of each request; `None` if only the callers set deadlines.
    pub request_timeout: Option<Duration>,
    /// Pings; `None` for short connections.
    pub keep_alive: Option<KeepAlive>,
    /// Certificates; required for `https` URLs.
    pub tls: Option<TlsMaterial>,
    /// User; `None` without authentication.
    pub login: Option<Login>,
}

impl ConnectSettings {
    /// Settings without pings, TLS and login.
    pub fn new(connect_timeout: Duration) -> Self {
        Self {
            connect_timeout,
            request_timeout: None,
            keep_alive: None,
            tls: None,
            login: None,
        }
    }
}

/// Connects to the URLs. A client with several URLs sends each request to any of them.
///
/// # Errors
/// The connection or the login failed, or took longer than the timeout.
pub async fn connect(urls: &[&str], settings: ConnectSettings) -> Result<Client, RequestError> {
    let limit = settings.connect_timeout;
    let mut options = ConnectOptions::new().with_connect_timeout(limit);
    if let Some(timeout) = settings.request_timeout {
        options = options.with_timeout(timeout);
    }
    if let Some(KeepAlive { interval, timeout }) = settings.keep_alive {
        options = options
            .with_keep_alive(interval, timeout)
            .with_keep_alive_while_idle(true);
    }
    if let Some(tls) = settings.tls {
        options = options.with_tls(tls.into_options());
    }
    if let Some(Login { name, password }) = settings.login {
        options = options
            .with_user(name, password)
            .with_auto_token_refresh(true);
    }
    let urls: Vec<&str> = urls.iter().map(|url| url.trim_end_matches('/')).collect();
    with_deadline(limit, Client::connect(&urls, Some(options))).await
}
