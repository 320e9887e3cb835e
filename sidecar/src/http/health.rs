//! What can be told from what is known: health, readiness, metrics, status.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use mainstay_telemetry::Chain;
use serde_json::json;
use tracing::warn;

use super::answer::Problem;
use super::model::Status;
use super::routes::App;
use crate::metrics::CONTENT_TYPE as METRICS_TYPE;
use crate::state::{Standing, State as Known};

/// As the peer: healthy is the sidecar that leads, with an etcd that answers. Without a store there is nothing to wait for.
fn is_healthy(known: &Known) -> bool {
    known.standing == Standing::Leader && (known.etcd_answers || !known.has_store)
}

/// `{"health":true}` on the leader's sidecar; the others are 503, and that is nothing to worry about.
pub(super) async fn healthz(State(app): State<App>) -> Response {
    let health = is_healthy(&app.parts.view.borrow());
    (code(health), Json(json!({ "health": health }))).into_response()
}

/// Whether the sidecar itself works. What becomes of its backups is told elsewhere: a pod must not lose its traffic for them.
pub(super) async fn readyz(State(app): State<App>) -> Response {
    let is_stopping = app.ends.soon.is_cancelled();
    let is_kept_up = app.parts.view.has_changed().is_ok();
    let ready = is_kept_up && !is_stopping;
    (code(ready), Json(json!({ "ready": ready }))).into_response()
}

/// All series.
pub(super) async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    let metrics = app.parts.metrics.clone();
    let failed = |text| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, text);
    let rendered = tokio::task::spawn_blocking(move || metrics.render()).await;
    match rendered {
        Ok(Ok(text)) => Ok(([(CONTENT_TYPE, METRICS_TYPE)], text).into_response()),
        Ok(Err(error)) => {
            warn!(error = %Chain(&error), "the metrics cannot be rendered");
            Err(failed("the metrics cannot be rendered"))
        }
        Err(_) => Err(failed("the process is stopping")),
    }
}

/// Everything, for people.
pub(super) async fn status(State(app): State<App>) -> Json<Status> {
    let known = app.parts.view.borrow().clone();
    let uptime = app.started.elapsed();
    Json(Status::new(known, Timestamp::now(), uptime))
}

fn code(is_good: bool) -> StatusCode {
    if is_good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
