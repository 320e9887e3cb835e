//! What can be told from what is known: health, readiness, metrics, status.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use mainstay_telemetry::ErrorChain;
use serde_json::json;
use tracing::warn;

use super::answer::ErrorResponse;
use super::model::StatusResponse;
use super::routes::HttpApp;
use crate::metrics::CONTENT_TYPE as METRICS_TYPE;
use crate::state::{SidecarRole, SidecarState as Known};

/// As the peer: healthy is the sidecar that leads, with an etcd that answers. Without a store there is nothing to wait for.
fn is_healthy(known: &Known) -> bool {
    known.role == SidecarRole::Leader && (known.is_etcd_reachable || !known.has_store)
}

/// `{"health":true}` on the leader's sidecar; the others are 503, and that is nothing to worry about.
pub(super) async fn healthz(State(app): State<HttpApp>) -> Response {
    let health = is_healthy(&app.backend.state_rx.borrow());
    (to_status_code(health), Json(json!({ "health": health }))).into_response()
}

/// Whether the sidecar itself works. What becomes of its backups is told elsewhere: a pod must not lose its traffic for them.
pub(super) async fn readyz(State(app): State<HttpApp>) -> Response {
    let is_stopping = app.shutdown.graceful.is_cancelled();
    let is_kept_up = app.backend.state_rx.has_changed().is_ok();
    let ready = is_kept_up && !is_stopping;
    (to_status_code(ready), Json(json!({ "ready": ready }))).into_response()
}

/// All series.
pub(super) async fn metrics(State(app): State<HttpApp>) -> Result<Response, ErrorResponse> {
    let metrics = app.backend.metrics.clone();
    let failed = |text| ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, text);
    let rendered = tokio::task::spawn_blocking(move || metrics.render()).await;
    match rendered {
        Ok(Ok(text)) => Ok(([(CONTENT_TYPE, METRICS_TYPE)], text).into_response()),
        Ok(Err(error)) => {
            warn!(error = %ErrorChain(&error), "the metrics cannot be rendered");
            Err(failed("the metrics cannot be rendered"))
        }
        Err(_) => Err(failed("the process is stopping")),
    }
}

/// Everything, for people.
pub(super) async fn status(State(app): State<HttpApp>) -> Json<StatusResponse> {
    let known = app.backend.state_rx.borrow().clone();
    let uptime = app.started_at.elapsed();
    Json(StatusResponse::new(known, Timestamp::now(), uptime))
}

fn to_status_code(is_good: bool) -> StatusCode {
    if is_good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
