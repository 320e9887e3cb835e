//! HTTP endpoints: liveness, readiness, metrics.
//!
//! Liveness does not depend on the API server: a restart does not fix an unreachable API server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mainstay_telemetry::ErrorChain;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::metrics::{CONTENT_TYPE as METRICS_TYPE, ControllerMetrics};

/// Ready: the CRDs are served and, on the leader, all caches are filled.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    pub(crate) fn set(&self, is_ready: bool) {
        self.0.store(is_ready, Ordering::Release);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsServerError {
    #[error("listen on {address}")]
    Bind {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("serve requests")]
    Serve { source: io::Error },
}

#[derive(Clone)]
struct HttpState {
    metrics: ControllerMetrics,
    readiness: Readiness,
}

/// Listens on an address and serves until `cancel`.
pub(crate) async fn serve(
    address: SocketAddr,
    metrics: ControllerMetrics,
    readiness: Readiness,
    cancel: CancellationToken,
) -> Result<(), MetricsServerError> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| MetricsServerError::Bind { address, source })?;
    serve_on(listener, metrics, readiness, cancel).await
}

/// Serves on an open listener until `cancel`.
pub async fn serve_on(
    listener: TcpListener,
    metrics: ControllerMetrics,
    readiness: Readiness,
    cancel: CancellationToken,
) -> Result<(), MetricsServerError> {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(handle_readyz))
        .route("/metrics", get(handle_metrics))
        .with_state(HttpState { metrics, readiness });
    axum::serve(listener, app)
        .with_graceful_shutdown(async move { cancel.cancelled().await })
        .await
        .map_err(|source| MetricsServerError::Serve { source })
}

async fn handle_readyz(State(app): State<HttpState>) -> Response {
    if app.readiness.get() {
        (StatusCode::OK, "ok").into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: waiting for CRDs and caches",
        )
            .into_response()
    }
}

async fn handle_metrics(State(app): State<HttpState>) -> Response {
    match app.metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => {
            warn!(error = %ErrorChain(&error), "failed to render metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn process_is_live_before_it_is_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (readiness, cancel) = (Readiness::default(), CancellationToken::new());
        let served = tokio::spawn(serve_on(
            listener,
            ControllerMetrics::new().unwrap(),
            readiness.clone(),
            cancel.clone(),
        ));
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let code = async |path: &str| {
            http.get(format!("{url}{path}"))
                .send()
                .await
                .unwrap()
                .status()
                .as_u16()
        };
        assert_eq!((code("/healthz").await, code("/readyz").await), (200, 503));
        readiness.set(true);
        assert_eq!(
            (
                code("/readyz").await,
                code("/metrics").await,
                code("/other").await
            ),
            (200, 200, 404)
        );
        cancel.cancel();
        drop(http);
        tokio::time::timeout(Duration::from_secs(10), served)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}
