//! Handlers that answer from the shared state: health, readiness, metrics, status.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use mainstay_telemetry::ErrorChain;
use serde_json::json;
use tracing::warn;

use super::error_response::ErrorResponse;
use super::model::StatusResponse;
use super::routes::HttpApp;
use crate::metrics::CONTENT_TYPE as METRICS_TYPE;
use crate::state::{SidecarRole, SidecarState as Known};

/// As etcd-backup-restore: only the leading sidecar is healthy, and only while etcd responds. Without a store the
/// reachability of etcd does not count.
fn is_healthy(known: &Known) -> bool {
    known.role == SidecarRole::Leader && (known.is_etcd_reachable || !known.has_store)
}

/// `{"health":true}` on the leading sidecar; 503 on the others, which is their normal state.
pub(super) async fn healthz(State(app): State<HttpApp>) -> Response {
    let health = is_healthy(&app.backend.state_rx.borrow());
    (to_status_code(health), Json(json!({ "health": health }))).into_response()
}

/// Whether the sidecar itself works. Failing backups do not count: an unready pod would lose its client traffic.
pub(super) async fn readyz(State(app): State<HttpApp>) -> Response {
    let is_stopping = app.shutdown.graceful.is_cancelled();
    // The view errs once its writer is gone: the sidecar's tasks have ended.
    let is_updated = app.backend.state_rx.has_changed().is_ok();
    let ready = is_updated && !is_stopping;
    (to_status_code(ready), Json(json!({ "ready": ready }))).into_response()
}

pub(super) async fn metrics(State(app): State<HttpApp>) -> Result<Response, ErrorResponse> {
    let metrics = app.backend.metrics.clone();
    let failed = |text| ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, text);
    // Rendering reads files of /proc.
    let rendered = tokio::task::spawn_blocking(move || metrics.render()).await;
    match rendered {
        Ok(Ok(text)) => Ok(([(CONTENT_TYPE, METRICS_TYPE)], text).into_response()),
        Ok(Err(error)) => {
            warn!(error = %ErrorChain(&error), "failed to render metrics");
            Err(failed("failed to render metrics"))
        }
        Err(_) => Err(failed("the process is stopping")),
    }
}

pub(super) async fn status(State(app): State<HttpApp>) -> Json<StatusResponse> {
    let known = app.backend.state_rx.borrow().clone();
    let uptime = app.started_at.elapsed();
    Json(StatusResponse::new(known, Timestamp::now(), uptime))
}

fn to_status_code(is_ok: bool) -> StatusCode {
    if is_ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
