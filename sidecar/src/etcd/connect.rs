//! Clients that exist once, and again when the certificates change.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use mainstay_store::Secret;
use tokio::sync::Mutex;
use url::Url;

use super::error::{EtcdError, EtcdCall};

/// How often an idle connection is tested, and how long a test may take: a watch on a member that
/// vanished without a word ends after this.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// Files of a client certificate; read again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// Whom to trust.
    pub ca: Option<PathBuf>,
    /// The own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// How etcd is reached.
#[derive(Clone, Debug)]
pub struct EtcdClientConfig {
    /// The own member first.
    pub endpoints: Vec<Url>,
    /// Any member, by a service; may be empty.
    pub service_endpoints: Vec<Url>,
    /// Who to log in as.
    pub user: Option<(String, Password)>,
    /// Certificates, for `https` endpoints.
    pub tls: ClientTlsFiles,
    /// How long connecting may take.
    pub connection_timeout: Duration,
    /// How long a full snapshot may take.
    pub snapshot_timeout: Duration,
    /// How long one question may take.
    pub request_timeout: Duration,
}

/// What a user proves to be the user with.
#[derive(Clone, Debug)]
pub enum Password {
    /// As it was given.
    Text(Secret),
    /// The content of a file, without the line end; read at every login, so that it may change.
    File(PathBuf),
}

impl Password {
    /// Where it is read from, to tell people.
    fn file_path(&self) -> PathBuf {
        match self {
            Self::Text(_) => PathBuf::new(),
            Self::File(path) => path.clone(),
        }
    }

    /// The password as it is now.
    pub fn read(&self) -> std::io::Result<Secret> {
        match self {
            Self::Text(secret) => Ok(secret.clone()),
            Self::File(path) => {
                let text = std::fs::read_to_string(path)?;
                Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
            }
        }
    }
}

/// The etcd beside this sidecar. Cheap to clone; clones share the connection.
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
    /// Nothing is connected yet.
    pub fn new(config: EtcdClientConfig) -> Self {
        Self(Arc::new(EtcdClientInner {
            config,
            cached: Mutex::new(None),
        }))
    }

    /// How etcd is reached.
    pub fn config(&self) -> &EtcdClientConfig {
        &self.0.config
    }

    /// A client of the own member, and of no other.
    pub async fn own_client(&self) -> Result<Client, EtcdError> {
        let files = self.0.config.read_fingerprints().await;
        let mut own = self.0.cached.lock().await;
        if let Some(connected) = own.as_ref().filter(|connected| connected.fingerprints == files) {
            return Ok(connected.client.clone());
        }
        let endpoint = self.0.config.endpoints.iter().take(1);
        let client = self.connect(endpoint).await?;
        *own = Some(CachedClient {
            fingerprints: files,
            client: client.clone(),
        });
        Ok(client)
    }

    /// A client of the member at `url`.
    pub async fn client_for(&self, url: &Url) -> Result<Client, EtcdError> {
        self.connect([url]).await
    }

    /// A client of whichever member the service endpoints lead to, or the endpoints behind the own one; of the own
    /// one without them.
    pub async fn cluster_client(&self) -> Result<Client, EtcdError> {
        let config = &self.0.config;
        let others = config.endpoints.get(1..).unwrap_or_default();
        match (config.service_endpoints.as_slice(), others) {
            ([], []) => self.own_client().await,
            ([], others) => self.connect(others).await,
            (service, _) => self.connect(service).await,
        }
    }

    /// Connects, and logs in, anew for the next question: one that was refused may have come with a login that has
    /// ended.
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

/// Waits for an answer, but not for ever. What waits is boxed: calls of etcd are large, and every caller up the
/// stack would carry their size.
pub(crate) fn with_timeout<T>(
    limit: Duration,
    step: EtcdCall,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, EtcdError>> {
    let answer = Box::pin(answer);
    async move {
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => answer.map_err(EtcdError::request_failed(step)),
            Err(_) => Err(EtcdError::Timeout { call: step, limit }),
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
