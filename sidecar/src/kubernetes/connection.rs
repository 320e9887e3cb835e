//! The connection to the API server: cached on first use, retried after a failure.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use rustls::crypto::{CryptoProvider, ring};
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

/// Timeout for connecting, and for writing a request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Read timeout of a connection. Longer than the default heartbeat (30 s), because it also applies to idle connections: one that
/// times out just as a request starts fails the request. Callers have their own deadlines.
const READ_TIMEOUT: Duration = Duration::from_secs(45);

/// Credentials for the API server.
#[derive(Clone)]
pub enum KubeAccess {
    /// Service account of the pod.
    InCluster,
    /// Kubeconfig file.
    Kubeconfig(PathBuf),
    /// Client of the caller, for tests.
    Client(Client),
}

impl std::fmt::Debug for KubeAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InCluster => f.write_str("InCluster"),
            Self::Kubeconfig(path) => f.debug_tuple("Kubeconfig").field(path).finish(),
            Self::Client(_) => f.write_str("Client"),
        }
    }
}

/// Failure to connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeConnectError {
    /// The pod has no service account, or it is not mounted yet.
    #[error("failed to read the pod's service account")]
    InCluster { source: InClusterError },
    #[error("failed to read kubeconfig {}", path.display())]
    Kubeconfig {
        path: PathBuf,
        source: Box<KubeconfigError>,
    },
    #[error("failed to create a client for the API server at {url}")]
    Client {
        url: String,
        source: Box<kube::Error>,
    },
    /// The process is stopping.
    #[error("reading the Kubernetes configuration was cancelled")]
    Stopping { source: JoinError },
}

/// Shared connection to the API server.
#[derive(Debug)]
pub struct KubeConnection {
    access: KubeAccess,
    client: Mutex<Option<OpaqueClient>>,
}

/// Implements `Debug`, which `Client` does not.
struct OpaqueClient(Client);

impl std::fmt::Debug for OpaqueClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl KubeConnection {
    /// Does not connect yet.
    pub fn new(access: KubeAccess) -> Self {
        Self {
            access,
            client: Mutex::new(None),
        }
    }

    /// The client. Credentials are read on the first call, and again after a failed one: the service account may be
    /// mounted late.
    pub(crate) async fn client(&self) -> Result<Client, KubeConnectError> {
        let mut cached = self.client.lock().await;
        if let Some(OpaqueClient(client)) = cached.as_ref() {
            return Ok(client.clone());
        }
        let client = match &self.access {
            KubeAccess::Client(client) => client.clone(),
            KubeAccess::InCluster => build_client(load_in_cluster().await?)?,
            KubeAccess::Kubeconfig(path) => build_client(load_kubeconfig(path.clone()).await?)?,
        };
        *cached = Some(OpaqueClient(client.clone()));
        Ok(client)
    }
}

async fn load_in_cluster() -> Result<Config, KubeConnectError> {
    let config = spawn_blocking(Config::incluster).await;
    let config = config.map_err(|source| KubeConnectError::Stopping { source })?;
    config.map_err(|source| KubeConnectError::InCluster { source })
}

async fn load_kubeconfig(path: PathBuf) -> Result<Config, KubeConnectError> {
    let to_error = |path: &PathBuf, source| KubeConnectError::Kubeconfig {
        path: path.clone(),
        source: Box::new(source),
    };
    let owned_path = path.clone();
    let file = spawn_blocking(move || Kubeconfig::read_from(owned_path)).await;
    let file = file.map_err(|source| KubeConnectError::Stopping { source })?;
    let file = file.map_err(|source| to_error(&path, source))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.map_err(|source| to_error(&path, source))
}

fn build_client(mut config: Config) -> Result<Client, KubeConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.write_timeout = Some(CONNECT_TIMEOUT);
    // Callers have their own retry schedule.
    config.default_retry = false;
    // Several crates bring a rustls provider, so none is the default. If another thread installs one first, that one
    // serves as well.
    if CryptoProvider::get_default().is_none() {
        ring::default_provider().install_default().ok();
    }
    let url = config.cluster_url.to_string();
    Client::try_from(config).map_err(|source| KubeConnectError::Client {
        url,
        source: Box::new(source),
    })
}
