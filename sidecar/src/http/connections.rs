//! Takes connections in, serves each in a task of its own, and sees them all off at the end.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::crowd::{ConnectionLimiter, ConnectionPermit};
use super::routes::{self, HttpApp, Caller};
use super::stall::WriteTimeout;
use super::tls::ServerCertificates;
use super::{HttpConfig, HttpLimits, HttpBackend, HttpServeError};
use crate::metrics::SidecarMetrics;

/// Time to recover when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Everything a connection needs.
struct ConnectionContext {
    router: Router,
    certificates: Option<Arc<ServerCertificates>>,
    limiter: Arc<ConnectionLimiter>,
    limits: HttpLimits,
    metrics: SidecarMetrics,
    shutdown: ServerShutdown,
}

/// When to stop: politely, then at once.
#[derive(Clone, Debug)]
pub(super) struct ServerShutdown {
    /// No new requests.
    pub(super) graceful: CancellationToken,
    /// No requests at all.
    pub(super) immediate: CancellationToken,
    /// What has to end before the server does.
    pub(super) tasks: TaskTracker,
}

/// Answers until `cancel` and a little longer.
pub(super) async fn serve(
    sockets: Vec<TcpListener>,
    port: u16,
    config: HttpConfig,
    parts: HttpBackend,
    cancel: CancellationToken,
) -> Result<(), HttpServeError> {
    let certificates = match config.tls.clone() {
        None => None,
        Some(files) => Some(load_certificates(files).await?),
    };
    let ends = ServerShutdown {
        graceful: cancel,
        immediate: CancellationToken::new(),
        tasks: TaskTracker::new(),
    };
    let limits = config.limits.clone();
    let metrics = parts.metrics.clone();
    let hall = Arc::new(ConnectionContext {
        router: routes::build_router(HttpApp::new(config, port, parts, ends.clone())),
        certificates,
        limiter: ConnectionLimiter::new(limits.max_connections, limits.max_connections_per_address),
        limits,
        metrics,
        shutdown: ends,
    });
    let doors = sockets.into_iter().map(|socket| accept_connections(socket, &hall));
    futures::future::join_all(doors).await;
    let ends = &hall.shutdown;
    ends.tasks.close();
    if timeout(hall.limits.drain_timeout, ends.tasks.wait())
        .await
        .is_err()
    {
        warn!("requests under way were cut off");
        ends.immediate.cancel();
        ends.tasks.wait().await;
    }
    Ok(())
}

async fn load_certificates(files: super::ServerTlsFiles) -> Result<Arc<ServerCertificates>, HttpServeError> {
    let loaded = tokio::task::spawn_blocking(|| ServerCertificates::load(files)).await;
    let loaded = loaded.expect("reading files does not panic, and this runtime is not stopping");
    let certificates = loaded.map_err(|source| HttpServeError::Tls { source })?;
    Ok(Arc::new(certificates))
}

/// Takes connections in at one socket until the end.
async fn accept_connections(socket: TcpListener, hall: &Arc<ConnectionContext>) {
    let ends = &hall.shutdown;
    while let Some(accepted) = ends.graceful.run_until_cancelled(socket.accept()).await {
        match accepted {
            Ok((stream, from)) => spawn_connection(hall, stream, from),
            Err(error) => {
                warn!(error = %error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn spawn_connection(hall: &Arc<ConnectionContext>, stream: TcpStream, from: SocketAddr) {
    let Some(seat) = hall.limiter.try_acquire(from.ip()) else {
        debug!("a connection was closed: there are too many");
        hall.metrics.count_refused_connection();
        return;
    };
    let hall = Arc::clone(hall);
    let tasks = hall.shutdown.tasks.clone();
    tasks.spawn(async move {
        let now = hall.shutdown.immediate.clone();
        let served = now.run_until_cancelled(serve_connection(&hall, stream, seat)).await;
        if let Some(Err(error)) = served {
            debug!(error, "a connection ended badly");
        }
    });
}

/// From the first byte to the last. What goes wrong is the client's affair, so a word for the log is enough.
async fn serve_connection(hall: &ConnectionContext, stream: TcpStream, _seat: ConnectionPermit) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let stream = WriteTimeout::new(stream, hall.limits.write_timeout);
    let Some(certificates) = &hall.certificates else {
        return serve_requests(hall, stream, Caller::Anonymous).await;
    };
    let acceptor = TlsAcceptor::from(certificates.current_config().await);
    let shaken = timeout(hall.limits.handshake_timeout, acceptor.accept(stream)).await;
    let stream = shaken
        .map_err(|_| "the handshake took too long".to_owned())?
        .map_err(|error| error.to_string())?;
    let caller = match stream.get_ref().1.peer_certificates() {
        Some(_) => Caller::Authenticated,
        None => Caller::Anonymous,
    };
    serve_requests(hall, stream, caller).await
}

async fn serve_requests<S>(hall: &ConnectionContext, stream: S, caller: Caller) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = TowerToHyperService::new(hall.router.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(caller);
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(hall.limits.header_timeout)
        .max_headers(hall.limits.max_headers)
        .max_buf_size(hall.limits.max_header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = hall.shutdown.graceful.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(|error| error.to_string())
}
