//! HTTP server: health, metrics, status, and on-demand snapshots.
//!
//! ```text
//! listen ─► crowd ─► tls ─► gate ─► routes ┬─ /healthz /readyz /metrics /status    from the shared state
//!  bind     caps    reload  auth,          └─ /snapshot/full|delta|latest ┬─ leader ─► lane ─► snapshotter
//!                           limits                                        └─ else ──► the leader's sidecar
//! ```
//!
//! **Input**: requests of kubelets, Prometheus, controllers and users; some of them slow, some hostile. **Output**: the
//! paths, status codes and JSON of etcd-backup-restore, plus `/readyz` and `/status`.
//!
//! **Invariants**: a failing backup never makes this sidecar unready. Connections are limited in total and per address.
//! Request line and headers, the TLS handshake and an unread response each have a deadline; a request body is never read.
//! Snapshots of one kind are taken one at a time; a few callers wait, the others get 503 with `Retry-After`. A request
//! is forwarded to the leader at most once.
//!
//! **Client certificates**: with `--server-client-ca`, `/snapshot/*` and `/status` require a client certificate of that
//! CA (else 403). `/healthz`, `/readyz` and `/metrics` do not: kubelets have no client certificate.

mod args;
mod connection_limiter;
mod connections;
mod error_response;
mod forwarding;
mod health;
mod listeners;
mod model;
mod request_queue;
mod routes;
mod snapshots;
mod tls;
mod write_timeout;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::metrics::SidecarMetrics;
use crate::snapshotter::Snapshotter;
use crate::state::StateReceiver;

pub(crate) use args::HttpArgs;
pub use forwarding::{FORWARDED_HEADER, FindLeader, LeaderError};
pub use listeners::Listeners;
pub(crate) use tls::TlsError;

/// Configuration of the HTTP server.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Address to listen on; `None`: all addresses, IPv4 and IPv6.
    pub listen_address: Option<IpAddr>,
    /// 0 binds any free port.
    pub port: u16,
    /// `None`: plain HTTP.
    pub tls: Option<ServerTlsFiles>,
    /// Methods that trigger a snapshot.
    pub snapshot_methods: SnapshotMethods,
    /// TLS of requests to the leader's sidecar.
    pub leader_tls: LeaderTlsFiles,
    pub limits: HttpLimits,
}

/// Certificate files of the server, PEM. They are reloaded when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsFiles {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// CAs of client certificates; `None`: no path requires one.
    pub client_ca: Option<PathBuf>,
}

/// Methods that trigger a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotMethods {
    /// GET and POST: clients of etcd-backup-restore use GET.
    #[default]
    GetOrPost,
    /// POST only, so that a crawler or browser that follows links triggers none.
    PostOnly,
}

/// TLS files for requests to the leader's sidecar. Used only if this server uses TLS itself: the sidecars of a cluster
/// have the same configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderTlsFiles {
    /// CAs of the sidecars' certificates, PEM; `None`: the system's CAs.
    pub ca: Option<PathBuf>,
    /// Client certificate and key, PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Limits on clients. The defaults suffice for a cluster of seven members and its monitoring, and cost a few MB at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Concurrent connections.
    pub max_connections: usize,
    /// Concurrent connections of one address, so that one client cannot use up all of them.
    pub max_connections_per_address: usize,
    /// Concurrent requests for metrics and status.
    pub max_requests: usize,
    /// Callers that may wait while a snapshot of the same kind is taken.
    pub max_waiting: usize,
    /// Maximum wait of such a caller.
    pub queue_timeout: Duration,
    /// Timeout of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Timeout for request line and headers, from the connection or the previous response on.
    pub header_timeout: Duration,
    /// Time a client may leave part of a response unread.
    pub write_timeout: Duration,
    /// Time after which the caller of an on-demand snapshot gets 504; the snapshot continues.
    pub snapshot_timeout: Duration,
    /// Timeout for listing the store.
    pub list_timeout: Duration,
    /// Timeout for finding the leader, and for checking the health of its sidecar.
    pub leader_timeout: Duration,
    /// Time for requests in flight to finish when the process stops.
    pub drain_timeout: Duration,
    /// Bytes of request line and headers together; hyper requires at least 8192.
    pub max_header_bytes: usize,
    /// Number of headers of a request.
    pub max_headers: usize,
    /// Largest `Content-Length` of a request; the body is never read.
    pub max_body_bytes: u64,
    /// Largest response of the leader's sidecar that is relayed.
    pub max_response_bytes: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_connections: 256,
            max_connections_per_address: 64,
            max_requests: 32,
            max_waiting: 8,
            queue_timeout: Duration::from_mins(5),
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            snapshot_timeout: Duration::from_hours(1),
            list_timeout: Duration::from_mins(2),
            leader_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(10),
            max_header_bytes: 32 << 10,
            max_headers: 64,
            max_body_bytes: 64 << 10,
            max_response_bytes: 16 << 20,
        }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            listen_address: None,
            port: args::DEFAULT_PORT,
            tls: None,
            snapshot_methods: SnapshotMethods::default(),
            leader_tls: LeaderTlsFiles::default(),
            limits: HttpLimits::default(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpServeError {
    #[error("failed to listen on {address}")]
    Bind {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("failed to load the certificates of the HTTP server")]
    Tls { source: TlsError },
}

/// Listens and serves until `cancel`, then gives requests in flight `drain_timeout` to finish.
#[expect(clippy::too_many_arguments, reason = "each is one part of the sidecar")]
pub(crate) async fn serve(
    config: HttpConfig,
    state_rx: StateReceiver,
    snapshotter: Arc<dyn Snapshotter>,
    leader_finder: Arc<dyn FindLeader>,
    metrics: SidecarMetrics,
    cancel: CancellationToken,
) -> Result<(), HttpServeError> {
    let listeners = Listeners::bind(&config).await?;
    let parts = HttpBackend {
        state_rx,
        snapshotter,
        leader_finder,
        metrics,
    };
    listeners.serve(config, parts, cancel).await
}

/// Parts of the sidecar that handlers use.
#[derive(Clone)]
pub struct HttpBackend {
    pub state_rx: StateReceiver,
    pub snapshotter: Arc<dyn Snapshotter>,
    pub leader_finder: Arc<dyn FindLeader>,
    pub metrics: SidecarMetrics,
}
