//! `/metrics` and `/healthz`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mainstay_engine::Engine;
use mainstay_etcdserver::ServerMetrics;
use prometheus::{Registry, TextEncoder};

/// What the handlers read.
#[derive(Clone)]
pub(crate) struct HttpState {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) metrics: ServerMetrics,
    pub(crate) registry: Registry,
}

pub(crate) fn router(state: HttpState) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .with_state(state)
}

async fn metrics(State(state): State<HttpState>) -> Response {
    state.metrics.observe(&*state.engine).await;
    match TextEncoder::new().encode_to_string(&state.registry.gather()) {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Unhealthy when the engine needs a restart, so that a liveness probe makes one.
async fn health(State(state): State<HttpState>) -> (StatusCode, &'static str) {
    if state.engine.is_healthy() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "a write failed: restart the server\n",
        )
    }
}
