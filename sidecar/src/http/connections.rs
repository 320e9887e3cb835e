//! Accepts connections, serves each in its own task, and drains them on shutdown.

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

use super::connection_limiter::{ConnectionLimiter, ConnectionPermit};
use super::routes::{self, Caller, HttpApp};
use super::tls::ServerCertificates;
use super::write_timeout::WriteTimeout;
use super::{HttpBackend, HttpConfig, HttpLimits, HttpServeError};
use crate::metrics::SidecarMetrics;

/// Pause after a failed accept: out of file descriptors, accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// State that connections share.
struct ConnectionContext {
    router: Router,
    certificates: Option<Arc<ServerCertificates>>,
    limiter: Arc<ConnectionLimiter>,
    limits: HttpLimits,
    metrics: SidecarMetrics,
    shutdown: ServerShutdown,
}

/// The two stages of shutdown.
#[derive(Clone, Debug)]
pub(super) struct ServerShutdown {
    /// Requests in flight finish; no new ones are accepted.
    pub(super) graceful: CancellationToken,
    /// Requests in flight are cancelled.
    pub(super) immediate: CancellationToken,
    /// Connections and snapshots that the server waits for.
    pub(super) tasks: TaskTracker,
}

/// Serves until `cancel`, then drains.
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
    let shutdown = ServerShutdown {
        graceful: cancel,
        immediate: CancellationToken::new(),
        tasks: TaskTracker::new(),
    };
    let limits = config.limits.clone();
    let metrics = parts.metrics.clone();
    let context = Arc::new(ConnectionContext {
        router: routes::build_router(HttpApp::new(config, port, parts, shutdown.clone())),
        certificates,
        limiter: ConnectionLimiter::new(limits.max_connections, limits.max_connections_per_address),
        limits,
        metrics,
        shutdown,
    });
    let loops = sockets
        .into_iter()
        .map(|socket| accept_connections(socket, &context));
    futures::future::join_all(loops).await;
    let shutdown = &context.shutdown;
    shutdown.tasks.close();
    if timeout(context.limits.drain_timeout, shutdown.tasks.wait())
        .await
        .is_err()
    {
        warn!("drain timeout reached, cancelling requests in flight");
        shutdown.immediate.cancel();
        shutdown.tasks.wait().await;
    }
    Ok(())
}

async fn load_certificates(
    files: super::ServerTlsFiles,
) -> Result<Arc<ServerCertificates>, HttpServeError> {
    let loaded = tokio::task::spawn_blocking(|| ServerCertificates::load(files)).await;
    let loaded = loaded.expect("reading files does not panic, and this runtime is not stopping");
    let certificates = loaded.map_err(|source| HttpServeError::Tls { source })?;
    Ok(Arc::new(certificates))
}

/// Accepts connections of one socket until shutdown.
async fn accept_connections(socket: TcpListener, context: &Arc<ConnectionContext>) {
    let ends = &context.shutdown;
    while let Some(accepted) = ends.graceful.run_until_cancelled(socket.accept()).await {
        match accepted {
            Ok((stream, from)) => spawn_connection(context, stream, from),
            Err(error) => {
                warn!(error = %error, "failed to accept connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn spawn_connection(context: &Arc<ConnectionContext>, stream: TcpStream, from: SocketAddr) {
    let Some(permit) = context.limiter.try_acquire(from.ip()) else {
        debug!("connection refused: too many connections");
        context.metrics.count_refused_connection();
        return;
    };
    let context = Arc::clone(context);
    let tasks = context.shutdown.tasks.clone();
    tasks.spawn(async move {
        let now = context.shutdown.immediate.clone();
        let served = now
            .run_until_cancelled(serve_connection(&context, stream, permit))
            .await;
        if let Some(Err(error)) = served {
            debug!(error, "connection failed");
        }
    });
}

/// Serves one connection. Errors are strings: they are caused by the client and only logged.
async fn serve_connection(
    context: &ConnectionContext,
    stream: TcpStream,
    _permit: ConnectionPermit,
) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let stream = WriteTimeout::new(stream, context.limits.write_timeout);
    let Some(certificates) = &context.certificates else {
        return serve_requests(context, stream, Caller::Anonymous).await;
    };
    let acceptor = TlsAcceptor::from(certificates.current_config().await);
    let handshake = timeout(context.limits.handshake_timeout, acceptor.accept(stream)).await;
    let stream = handshake
        .map_err(|_| "TLS handshake timed out".to_owned())?
        .map_err(|error| error.to_string())?;
    let caller = match stream.get_ref().1.peer_certificates() {
        Some(_) => Caller::Authenticated,
        None => Caller::Anonymous,
    };
    serve_requests(context, stream, caller).await
}

async fn serve_requests<S>(
    context: &ConnectionContext,
    stream: S,
    caller: Caller,
) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = TowerToHyperService::new(context.router.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(caller);
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(context.limits.header_timeout)
        .max_headers(context.limits.max_headers)
        .max_buf_size(context.limits.max_header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = context.shutdown.graceful.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(|error| error.to_string())
}
