//! Clients of etcd. The client of this sidecar's member is cached and replaced when certificate or password files change.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use mainstay_store::Secret;
use tokio::sync::Mutex;
use url::Url;

use super::error::{EtcdCall, EtcdError};

/// Interval and timeout of HTTP/2 keepalive pings: a watch on a member that vanished without closing the connection ends
/// after their sum.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// TLS files, PEM; reloaded when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// CAs that verify etcd's certificate.
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate and key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// Connection settings of etcd.
#[derive(Clone, Debug)]
pub struct EtcdClientConfig {
    /// The first is this sidecar's member.
    pub(crate) endpoints: Vec<Url>,
    /// Service in front of all members; may be empty.
    pub(crate) service_endpoints: Vec<Url>,
    /// Name and password; `None` without authentication.
    pub(crate) user: Option<(String, Password)>,
    /// Used for `https` endpoints.
    pub(crate) tls: ClientTlsFiles,
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
        let urls: Vec<&str> = urls
            .into_iter()
            .map(|url| url.as_str().trim_end_matches('/'))
            .collect();
        let config = &self.0.config;
        let mut options = ConnectOptions::new()
            .with_connect_timeout(config.connection_timeout)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            .with_keep_alive_while_idle(true)
            .with_auto_token_refresh(true);
        if urls.iter().any(|url| url.starts_with("https:")) {
            options = options.with_tls(config.tls.load().await?);
        }
        if let Some((name, password)) = &config.user {
            let secret = password.read().map_err(|source| EtcdError::File {
                path: password.file_path(),
                source,
            })?;
            options = options.with_user(name, secret.expose());
        }
        let connecting = Client::connect(&urls, Some(options));
        with_timeout(config.connection_timeout, EtcdCall::Connect, connecting).await
    }
}

/// Awaits a response with a deadline. The future is boxed: `etcd_client`'s futures are large, and every caller would
/// include their size.
pub(crate) fn with_timeout<T>(
    limit: Duration,
    call: EtcdCall,
    response: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, EtcdError>> {
    let response = Box::pin(response);
    async move {
        match tokio::time::timeout(limit, response).await {
            Ok(response) => response.map_err(EtcdError::request_failed(call)),
            Err(_) => Err(EtcdError::Timeout { call, limit }),
        }
    }
}

impl ClientTlsFiles {
    async fn load(&self) -> Result<TlsOptions, EtcdError> {
        let mut tls = TlsOptions::new();
        if let Some(ca) = &self.ca {
            tls = tls.ca_certificate(Certificate::from_pem(read_file(ca).await?));
        }
        if let Some((certificate, key)) = &self.identity {
            let (certificate, key) = (read_file(certificate).await?, read_file(key).await?);
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        Ok(tls)
    }
}

impl EtcdClientConfig {
    async fn read_fingerprints(&self) -> FileFingerprints {
        let ClientTlsFiles { ca, identity } = &self.tls;
        let identity = identity.iter().flat_map(|(cert, key)| [cert, key]);
        let password = self.user.iter().filter_map(|(_, password)| match password {
            Password::File(path) => Some(path),
            Password::Text(_) => None,
        });
        let mut found = Vec::with_capacity(4);
        for path in ca.iter().chain(identity).chain(password) {
            let metadata = tokio::fs::metadata(path).await.ok();
            let observed = metadata.and_then(|m| Some((m.modified().ok()?, m.len())));
            found.push((path.clone(), observed));
        }
        found
    }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, EtcdError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| EtcdError::File {
            path: path.to_owned(),
            source,
        })
}
