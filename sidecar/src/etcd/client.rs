//! Clients of etcd. The client of this sidecar's member is cached and replaced when certificate or password files change.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use etcd_client::Client;
use mainstay_etcd::{
    ConnectSettings, CredentialFileError, KeepAlive, Login, TlsFiles, with_deadline,
};
use mainstay_store::Secret;
use tokio::sync::Mutex;
use url::Url;

use super::error::{EtcdCall, EtcdError};

/// A watch on a member that vanished without closing the connection ends after the sum of both.
const KEEP_ALIVE: KeepAlive = KeepAlive {
    interval: Duration::from_secs(5),
    timeout: Duration::from_secs(5),
};

/// Connection settings of etcd.
#[derive(Clone, Debug)]
pub struct EtcdClientConfig {
    /// The first is this sidecar's member.
    pub(crate) endpoints: Vec<Url>,
    /// Service in front of all members; may be empty.
    pub(crate) service_endpoints: Vec<Url>,
    /// Name and password; `None` without authentication.
    pub(crate) user: Option<(String, Password)>,
    /// Used for `https` endpoints, and reloaded when they change.
    pub(crate) tls: TlsFiles,
    pub(crate) connection_timeout: Duration,
    pub(crate) snapshot_timeout: Duration,
    /// Timeout of one request.
    pub(crate) request_timeout: Duration,
}

/// Source of the password.
#[derive(Clone, Debug)]
pub enum Password {
    /// From the command line.
    Text(Secret),
    /// Content of a file, without trailing newline; read at every login.
    File(PathBuf),
}

impl Password {
    /// File of the password, for error messages.
    fn file_path(&self) -> PathBuf {
        match self {
            Self::Text(_) => PathBuf::new(),
            Self::File(path) => path.clone(),
        }
    }

    /// Reads the current password.
    pub(crate) fn read(&self) -> std::io::Result<Secret> {
        match self {
            Self::Text(secret) => Ok(secret.clone()),
            Self::File(path) => {
                let text = std::fs::read_to_string(path)?;
                Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
            }
        }
    }
}

/// This sidecar's etcd. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct EtcdClient(Arc<EtcdClientInner>);

struct EtcdClientInner {
    config: EtcdClientConfig,
    cached: Mutex<Option<CachedClient>>,
}

struct CachedClient {
    fingerprints: FileFingerprints,
    client: Client,
}

/// Modification times and sizes of the files a client was made from.
type FileFingerprints = Vec<(PathBuf, Option<(SystemTime, u64)>)>;

impl EtcdClient {
    /// Does not connect yet.
    pub fn new(config: EtcdClientConfig) -> Self {
        Self(Arc::new(EtcdClientInner {
            config,
            cached: Mutex::new(None),
        }))
    }

    pub(crate) fn config(&self) -> &EtcdClientConfig {
        &self.0.config
    }

    /// Client of this sidecar's member only. The client must not balance to other members: a status from one of those would
    /// report the wrong leader.
    pub(crate) async fn own_client(&self) -> Result<Client, EtcdError> {
        let fingerprints = self.0.config.read_fingerprints().await;
        let mut own = self.0.cached.lock().await;
        if let Some(connected) = own
            .as_ref()
            .filter(|connected| connected.fingerprints == fingerprints)
        {
            return Ok(connected.client.clone());
        }
        let endpoint = self.0.config.endpoints.iter().take(1);
        let client = self.connect(endpoint).await?;
        *own = Some(CachedClient {
            fingerprints,
            client: client.clone(),
        });
        Ok(client)
    }

    /// Client of the member at `url`.
    pub(crate) async fn client_for(&self, url: &Url) -> Result<Client, EtcdError> {
        self.connect([url]).await
    }

    /// Client of any member: of the service endpoints, else of the further endpoints, else of this sidecar's member.
    pub(crate) async fn cluster_client(&self) -> Result<Client, EtcdError> {
        let config = &self.0.config;
        let others = config.endpoints.get(1..).unwrap_or_default();
        match (config.service_endpoints.as_slice(), others) {
            ([], []) => self.own_client().await,
            ([], others) => self.connect(others).await,
            (service, _) => self.connect(service).await,
        }
    }

    /// Drops the cached client, so that the next request connects and logs in again: a failed request may have had an
    /// expired auth token.
    pub(super) async fn drop_connection(&self) {
        *self.0.cached.lock().await = None;
    }

    async fn connect(&self, urls: impl IntoIterator<Item = &Url>) -> Result<Client, EtcdError> {
        let urls: Vec<&str> = urls.into_iter().map(Url::as_str).collect();
        let config = &self.0.config;
        let mut settings = ConnectSettings {
            keep_alive: Some(KEEP_ALIVE),
            ..ConnectSettings::new(config.connection_timeout)
        };
        if urls.iter().any(|url| url.starts_with("https:")) {
            settings.tls = Some(config.tls.load().await?);
        }
        if let Some((name, password)) = &config.user {
            let secret = password.read().map_err(|source| CredentialFileError {
                path: password.file_path(),
                source,
            })?;
            settings.login = Some(Login {
                name: name.clone(),
                password: secret.expose().to_owned(),
            });
        }
        let connecting = mainstay_etcd::connect(&urls, settings).await;
        connecting.map_err(EtcdError::request_failed(EtcdCall::Connect))
    }
}

/// Awaits a response with a deadline and names the call that failed. Not an `async fn`, which would include the size of
/// `response`: see [`with_deadline`].
pub(crate) fn with_timeout<T>(
    limit: Duration,
    call: EtcdCall,
    response: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, EtcdError>> {
    let response = with_deadline(limit, response);
    async move { response.await.map_err(EtcdError::request_failed(call)) }
}

impl EtcdClientConfig {
    async fn read_fingerprints(&self) -> FileFingerprints {
        let password = self.user.iter().filter_map(|(_, password)| match password {
            Password::File(path) => Some(path),
            Password::Text(_) => None,
        });
        let mut found = Vec::with_capacity(4);
        for path in self.tls.paths().chain(password) {
            let metadata = tokio::fs::metadata(path).await.ok();
            let observed = metadata.and_then(|m| Some((m.modified().ok()?, m.len())));
            found.push((path.clone(), observed));
        }
        found
    }
}
