//! The connection to the API server: made when first needed, tried again when that failed.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use rustls::crypto::{CryptoProvider, ring};
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

/// How long a connection may take to come about, and a request to leave.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may be silent. Those that wait for the next heartbeat are silent, too: one that ended just then would
/// take the request with it. Whoever asks has a deadline of its own.
const READ_TIMEOUT: Duration = Duration::from_secs(45);

/// How the API server is reached.
#[derive(Clone)]
pub enum KubeAccess {
    /// With the service account of the pod.
    InCluster,
    /// With a file.
    Kubeconfig(PathBuf),
    /// With what the caller made.
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

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeConnectError {
    /// The pod has no service account, or it cannot be read yet.
    #[error("read the pod's service account")]
    InCluster {
        /// What is missing.
        source: InClusterError,
    },
    /// The kubeconfig is no good.
    #[error("read the kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// The configuration makes no client.
    #[error("prepare a connection to the API server at {url}")]
    Client {
        /// Where it is.
        url: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The process is stopping.
    #[error("reading the configuration was given up")]
    Stopping {
        /// How.
        source: JoinError,
    },
}

/// One connection for all that talks to Kubernetes.
#[derive(Debug)]
pub struct KubeConnection {
    access: KubeAccess,
    client: Mutex<Option<OpaqueClient>>,
}

/// A client that was made; it says nothing of itself.
struct OpaqueClient(Client);

impl std::fmt::Debug for OpaqueClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl KubeConnection {
    /// Nothing is read or opened yet.
    pub fn new(access: KubeAccess) -> Self {
        Self {
            access,
            client: Mutex::new(None),
        }
    }

    /// The client. What it needs is read on the first call, and again after a call that failed.
    pub async fn client(&self) -> Result<Client, KubeConnectError> {
        let mut made = self.client.lock().await;
        if let Some(OpaqueClient(client)) = made.as_ref() {
            return Ok(client.clone());
        }
        let client = match &self.access {
            KubeAccess::Client(client) => client.clone(),
            KubeAccess::InCluster => build_client(load_in_cluster().await?)?,
            KubeAccess::Kubeconfig(path) => build_client(load_kubeconfig(path.clone()).await?)?,
        };
        *made = Some(OpaqueClient(client.clone()));
        Ok(client)
    }
}

async fn load_in_cluster() -> Result<Config, KubeConnectError> {
    let config = spawn_blocking(Config::incluster).await;
    let config = config.map_err(|source| KubeConnectError::Stopping { source })?;
    config.map_err(|source| KubeConnectError::InCluster { source })
}

async fn load_kubeconfig(path: PathBuf) -> Result<Config, KubeConnectError> {
    let unfit = |path: &PathBuf, source| KubeConnectError::Kubeconfig {
        path: path.clone(),
        source: Box::new(source),
    };
    let of_blocking = path.clone();
    let file = spawn_blocking(move || Kubeconfig::read_from(of_blocking)).await;
    let file = file.map_err(|source| KubeConnectError::Stopping { source })?;
    let file = file.map_err(|source| unfit(&path, source))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.map_err(|source| unfit(&path, source))
}

fn build_client(mut config: Config) -> Result<Client, KubeConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.write_timeout = Some(CONNECT_TIMEOUT);
    // Whoever calls has a schedule of retries of its own.
    config.default_retry = false;
    // Several crates bring a provider, so none is the default by itself. Losing the race to install one is
    // as good as winning it.
    if CryptoProvider::get_default().is_none() {
        ring::default_provider().install_default().ok();
    }
    let url = config.cluster_url.to_string();
    Client::try_from(config).map_err(|source| KubeConnectError::Client {
        url,
        source: Box::new(source),
    })
}
