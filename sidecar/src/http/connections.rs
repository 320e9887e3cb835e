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

use super::crowd::{Crowd, Seat};
use super::routes::{self, App, Caller};
use super::stall::Stall;
use super::tls::Certificates;
use super::{HttpConfig, Limits, Parts, ServeError};
use crate::metrics::Metrics;

/// Time to recover when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Everything a connection needs.
struct Hall {
    router: Router,
    certificates: Option<Arc<Certificates>>,
    crowd: Arc<Crowd>,
    limits: Limits,
    metrics: Metrics,
    ends: Ends,
}

/// When to stop: politely, then at once.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    /// No new requests.
    pub(super) soon: CancellationToken,
    /// No requests at all.
    pub(super) now: CancellationToken,
    /// What has to end before the server does.
    pub(super) tasks: TaskTracker,
}

/// Answers until `cancel` and a little longer.
pub(super) async fn serve(
    sockets: Vec<TcpListener>,
    port: u16,
    config: HttpConfig,
    parts: Parts,
    cancel: CancellationToken,
) -> Result<(), ServeError> {
    let certificates = match config.tls.clone() {
        None => None,
        Some(files) => Some(load(files).await?),
    };
    let ends = Ends {
        soon: cancel,
        now: CancellationToken::new(),
        tasks: TaskTracker::new(),
    };
    let limits = config.limits.clone();
    let metrics = parts.metrics.clone();
    let hall = Arc::new(Hall {
        router: routes::router(App::new(config, port, parts, ends.clone())),
        certificates,
        crowd: Crowd::new(limits.connections, limits.connections_per_address),
        limits,
        metrics,
        ends,
    });
    let doors = sockets.into_iter().map(|socket| accept(socket, &hall));
    futures::future::join_all(doors).await;
    let ends = &hall.ends;
    ends.tasks.close();
    if timeout(hall.limits.drain_time, ends.tasks.wait())
        .await
        .is_err()
    {
        warn!("requests under way were cut off");
        ends.now.cancel();
        ends.tasks.wait().await;
    }
    Ok(())
}

async fn load(files: super::TlsFiles) -> Result<Arc<Certificates>, ServeError> {
    let loaded = tokio::task::spawn_blocking(|| Certificates::load(files)).await;
    let loaded = loaded.expect("reading files does not panic, and this runtime is not stopping");
    let certificates = loaded.map_err(|source| ServeError::Tls { source })?;
    Ok(Arc::new(certificates))
}

/// Takes connections in at one socket until the end.
async fn accept(socket: TcpListener, hall: &Arc<Hall>) {
    let ends = &hall.ends;
    while let Some(accepted) = ends.soon.run_until_cancelled(socket.accept()).await {
        match accepted {
            Ok((stream, from)) => welcome(hall, stream, from),
            Err(error) => {
                warn!(error = %error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn welcome(hall: &Arc<Hall>, stream: TcpStream, from: SocketAddr) {
    let Some(seat) = hall.crowd.admit(from.ip()) else {
        debug!("a connection was closed: there are too many");
        hall.metrics.http_refused();
        return;
    };
    let hall = Arc::clone(hall);
    let tasks = hall.ends.tasks.clone();
    tasks.spawn(async move {
        let now = hall.ends.now.clone();
        let served = now.run_until_cancelled(host(&hall, stream, seat)).await;
        if let Some(Err(error)) = served {
            debug!(error, "a connection ended badly");
        }
    });
}

/// From the first byte to the last. What goes wrong is the client's affair, so a word for the log is enough.
async fn host(hall: &Hall, stream: TcpStream, _seat: Seat) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let stream = Stall::new(stream, hall.limits.stall_time);
    let Some(certificates) = &hall.certificates else {
        return converse(hall, stream, Caller::Anybody).await;
    };
    let acceptor = TlsAcceptor::from(certificates.current().await);
    let shaken = timeout(hall.limits.handshake_time, acceptor.accept(stream)).await;
    let stream = shaken
        .map_err(|_| "the handshake took too long".to_owned())?
        .map_err(|error| error.to_string())?;
    let caller = match stream.get_ref().1.peer_certificates() {
        Some(_) => Caller::Certified,
        None => Caller::Anybody,
    };
    converse(hall, stream, caller).await
}

async fn converse<S>(hall: &Hall, stream: S, caller: Caller) -> Result<(), String>
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
        .header_read_timeout(hall.limits.header_time)
        .max_headers(hall.limits.headers)
        .max_buf_size(hall.limits.header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = hall.ends.soon.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(|error| error.to_string())
}
