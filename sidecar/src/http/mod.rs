//! Answers over HTTP: health, metrics, status, and snapshots on demand.
//!
//! ```text
//! listen ─► crowd ─► tls ─► gate ─► routes ┬─ /healthz /readyz /metrics /status    from what is known
//!  bind     caps    reload  auth,          └─ /snapshot/full|delta|latest ┬─ leads ─► lane ─► snapshotter
//!                           limits                                        └─ else ──► the leader's sidecar
//! ```
//!
//! **Comes in**: requests of kubelets, Prometheus, controllers, people; some of them slow, some hostile. **Goes out**: the
//! peer's paths, status codes and JSON, and `/readyz` and `/status` beside them.
//!
//! **Holds**: a failing backup never makes this sidecar unready. Connections are counted, in all and by address;
//! a request line, its headers, a handshake and an unread answer each have a deadline; a request body is never read.
//! Snapshots of one kind are taken one at a time, a few callers wait, the rest are told to come back. A request is
//! forwarded to the leader at most once.
//!
//! **Client certificates**: with `--server-client-ca`, `/snapshot/*` and `/status` answer only callers whose certificate that
//! authority signed (else 403). `/healthz`, `/readyz` and `/metrics` answer everybody: kubelets have no certificate.

mod answer;
mod args;
mod connections;
mod crowd;
mod delegate;
mod health;
mod lane;
mod listen;
mod model;
mod routes;
mod snapshots;
mod stall;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::ask::Snapshotter;
use crate::metrics::SidecarMetrics;
use crate::state::StateReceiver;

pub use args::{HttpArgs, HttpArgsError};
pub use delegate::{FORWARDED_HEADER, FindLeader, LeaderError};
pub use listen::Listeners;
pub use tls::TlsError;

/// How requests are answered.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// The address to listen on; all of the machine, v4 and v6, when there is none.
    pub listen_address: Option<IpAddr>,
    /// The port; 0 takes a free one.
    pub port: u16,
    /// Certificates; plain HTTP when there are none.
    pub tls: Option<ServerTlsFiles>,
    /// How a snapshot may be asked for.
    pub snapshot_methods: SnapshotMethods,
    /// How the leader's sidecar is spoken to.
    pub leader_tls: LeaderTlsFiles,
    /// What one client, or all of them, can take.
    pub limits: HttpLimits,
}

/// Files of the server's certificates. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsFiles {
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Authorities of client certificates, PEM; without it nobody needs one.
    pub client_ca: Option<PathBuf>,
}

/// The methods that take a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotMethods {
    /// GET and POST: clients of the peer use GET.
    #[default]
    GetOrPost,
    /// POST only, so that nothing that follows links takes one.
    PostOnly,
}

/// How a sidecar that does not lead speaks to the one that does. Used only when this server has TLS itself: the sidecars of
/// a cluster are configured alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderTlsFiles {
    /// Authorities that sign the certificates of sidecars, PEM; those of the machine when there is none.
    pub ca: Option<PathBuf>,
    /// Certificate and key to show to the leader.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// What clients can take. The defaults serve a cluster of seven and whoever watches it, and cost a few MB at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Connections at a time.
    pub max_connections: usize,
    /// Connections at a time from one address, so that one client cannot take them all.
    pub max_connections_per_address: usize,
    /// Requests for metrics and status that are answered at the same time.
    pub max_requests: usize,
    /// Callers that may wait for a snapshot of one kind while another is taken.
    pub max_waiting: usize,
    /// How long they wait.
    pub queue_timeout: Duration,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// How long request line and headers may take, from the connection or from the answer before.
    pub header_timeout: Duration,
    /// How long a client may leave a piece of an answer unread.
    pub write_timeout: Duration,
    /// How long a snapshot on demand may take before its caller is told that it goes on without them.
    pub snapshot_timeout: Duration,
    /// How long listing the store may take.
    pub list_timeout: Duration,
    /// How long finding the leader, and asking for its health, may take.
    pub leader_timeout: Duration,
    /// How long requests under way may go on when the process stops.
    pub drain_timeout: Duration,
    /// Bytes of request line and headers together, at least 8192.
    pub max_header_bytes: usize,
    /// Headers of a request.
    pub max_headers: usize,
    /// The largest body a request may announce; it is not read in any case.
    pub max_body_bytes: u64,
    /// The largest answer of the leader that is passed on.
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

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpServeError {
    /// The address cannot be had.
    #[error("listen on {address}")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The certificates cannot be used.
    #[error("load the certificates of the HTTP server")]
    Tls {
        /// Which and why.
        source: TlsError,
    },
}

/// Listens and answers until `cancel`, then lets requests under way finish for a while.
#[expect(clippy::too_many_arguments, reason = "each is one part of the sidecar")]
pub async fn serve(
    config: HttpConfig,
    view: StateReceiver,
    snapshots: Arc<dyn Snapshotter>,
    leader: Arc<dyn FindLeader>,
    metrics: SidecarMetrics,
    cancel: CancellationToken,
) -> Result<(), HttpServeError> {
    let listeners = Listeners::bind(&config).await?;
    let parts = HttpBackend {
        state_rx: view,
        snapshotter: snapshots,
        leader_finder: leader,
        metrics,
    };
    listeners.serve(config, parts, cancel).await
}

/// What answers are made of.
#[derive(Clone)]
pub struct HttpBackend {
    /// What the sidecar knows.
    pub state_rx: StateReceiver,
    /// Who takes snapshots.
    pub snapshotter: Arc<dyn Snapshotter>,
    /// Who knows the leader.
    pub leader_finder: Arc<dyn FindLeader>,
    /// What is measured.
    pub metrics: SidecarMetrics,
}
