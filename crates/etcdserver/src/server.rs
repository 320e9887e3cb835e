//! Listens and serves.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstay_engine::{Engine, LeaseExpiry};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use crate::front::{Front, FrontOptions};
use crate::guard::{Access, GuardLayer};
use crate::metrics::{MetricsLayer, ServerMetrics};
use crate::proto::etcdserverpb::auth_server::AuthServer;
use crate::proto::etcdserverpb::cluster_server::ClusterServer;
use crate::proto::etcdserverpb::kv_server::KvServer;
use crate::proto::etcdserverpb::lease_server::LeaseServer;
use crate::proto::etcdserverpb::maintenance_server::MaintenanceServer;
use crate::proto::etcdserverpb::watch_server::WatchServer;

/// Largest message that is read at all. Between etcd's limit and this one, requests are refused with etcd's text.
const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// A connection without traffic is checked at this interval, as etcd does.
const KEEP_ALIVE: Duration = Duration::from_hours(2);

/// Files of the server's certificate.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// CA of client certificates. With it, every client needs one.
    pub client_ca: Option<PathBuf>,
}

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// A TLS file cannot be read.
    #[error("failed to read {path}")]
    ReadTls {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The certificate or key is invalid.
    #[error("invalid certificate or key")]
    Tls {
        /// Why.
        source: tonic::transport::Error,
    },
    /// The listener failed.
    #[error("failed to serve the etcd API")]
    Serve {
        /// Why.
        source: tonic::transport::Error,
    },
}

/// The etcd API over one engine.
pub struct EtcdApi {
    engine: Arc<dyn Engine>,
    options: FrontOptions,
    access: Access,
    metrics: ServerMetrics,
    tls: Option<TlsFiles>,
}

impl std::fmt::Debug for EtcdApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdApi")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl EtcdApi {
    /// An API without TLS, open to everyone who can connect.
    pub fn new(engine: Arc<dyn Engine>, options: FrontOptions, metrics: ServerMetrics) -> Self {
        Self {
            engine,
            options,
            access: Access::Open,
            metrics,
            tls: None,
        }
    }

    /// Serves with TLS.
    #[must_use]
    pub fn tls(mut self, files: TlsFiles) -> Self {
        self.tls = Some(files);
        self
    }

    /// Restricts what principals may do.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Serves until `shutdown`, then answers the requests in flight and ends the streams.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let drain = CancellationToken::new();
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(Duration::from_secs(20)));
        if let Some(files) = &self.tls {
            let config = tls_config(files).await?;
            server = server
                .tls_config(config)
                .map_err(|source| ServeError::Tls { source })?;
        }
        let guard = GuardLayer::new(self.access, self.options.requests_per_principal);
        let front = Front::new(Arc::clone(&self.engine), self.options, drain.clone());
        let _expiry = LeaseExpiry::start(self.engine);
        server
            .layer(MetricsLayer(self.metrics))
            .layer(guard)
            .add_routes(routes(front))
            .serve_with_incoming_shutdown(
                TcpIncoming::from(listener).with_nodelay(Some(true)),
                async {
                    shutdown.await;
                    drain.cancel(); // streams would hold the drain up for ever
                },
            )
            .await
            .map_err(|source| ServeError::Serve { source })
    }
}

fn routes(front: Front) -> Routes {
    Routes::new(KvServer::new(front.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES))
        .add_service(WatchServer::new(front.clone()))
        .add_service(LeaseServer::new(front.clone()))
        .add_service(ClusterServer::new(front.clone()))
        .add_service(AuthServer::new(front.clone()))
        .add_service(MaintenanceServer::new(front))
}

async fn tls_config(files: &TlsFiles) -> Result<ServerTlsConfig, ServeError> {
    let certificate = read(&files.certificate).await?;
    let key = read(&files.key).await?;
    let mut config = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
    if let Some(ca) = &files.client_ca {
        config = config.client_ca_root(Certificate::from_pem(read(ca).await?));
    }
    Ok(config)
}

async fn read(path: &PathBuf) -> Result<Vec<u8>, ServeError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| ServeError::ReadTls {
            path: path.clone(),
            source,
        })
}
