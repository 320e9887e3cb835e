//! On-demand snapshots: the leading sidecar takes them, the others forward the request to it.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::time::timeout;
use tracing::info;

use super::error_response::ErrorResponse;
use super::forwarding;
use super::model::{LatestResponse, SnapshotResponse};
use super::request_queue::RequestQueue;
use super::routes::HttpApp;
use crate::snapshotter::{Finality, SnapshotRequestError};
use crate::state::{SidecarRole, StoredSnapshot};

/// Query parameters: `?final=…`
#[derive(Debug, Deserialize)]
pub(super) struct FullSnapshotQuery {
    #[serde(default, rename = "final")]
    is_final: String,
}

impl FullSnapshotQuery {
    /// Accepts what Go's `strconv.ParseBool` does, as etcd-backup-restore; absent means false.
    fn parse_finality(&self) -> Result<Finality, ErrorResponse> {
        match self.is_final.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Finality::Final),
            "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Finality::Ordinary),
            _ => Err(ErrorResponse::new(
                StatusCode::BAD_REQUEST,
                "invalid query parameter final: must be true or false",
            )),
        }
    }
}

/// Sidecar that has to serve the request.
enum RequestTarget {
    Local,
    Leader,
}

fn choose_target(app: &HttpApp) -> Result<RequestTarget, ErrorResponse> {
    let state = app.backend.state_rx.borrow();
    match state.role {
        _ if !state.has_store => Err(SnapshotRequestError::NoStore.into()),
        SidecarRole::Leader => Ok(RequestTarget::Local),
        SidecarRole::Unknown | SidecarRole::Learner | SidecarRole::Follower => {
            Ok(RequestTarget::Leader)
        }
    }
}

/// `/snapshot/full`.
pub(super) async fn take_full(
    State(app): State<HttpApp>,
    query: Result<Query<FullSnapshotQuery>, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Result<Response, ErrorResponse> {
    let Query(query) =
        query.map_err(|error| ErrorResponse::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    // Checked before forwarding, so that a bad request does not reach the leader.
    let finality = query.parse_finality()?;
    if let RequestTarget::Leader = choose_target(&app)? {
        return forwarding::forward_to_leader(&app, &app.queues.full, request).await;
    }
    info!("full snapshot requested");
    let snapshots = app.backend.snapshotter.clone();
    let work = async move { snapshots.take_full(finality).await };
    let limit = app.config.limits.snapshot_timeout;
    let stored: StoredSnapshot = run_queued(&app, &app.queues.full, limit, work).await?;
    Ok(Json(SnapshotResponse::from(&stored)).into_response())
}

/// `/snapshot/delta`: uploads the captured events; `null` if there are none.
pub(super) async fn take_delta(
    State(app): State<HttpApp>,
    request: Request,
) -> Result<Response, ErrorResponse> {
    if let RequestTarget::Leader = choose_target(&app)? {
        return forwarding::forward_to_leader(&app, &app.queues.delta, request).await;
    }
    let snapshots = app.backend.snapshotter.clone();
    let work = async move { snapshots.take_delta().await };
    let limit = app.config.limits.snapshot_timeout;
    let stored: Option<StoredSnapshot> = run_queued(&app, &app.queues.delta, limit, work).await?;
    Ok(Json(stored.as_ref().map(SnapshotResponse::from)).into_response())
}

/// `/snapshot/latest`: lists the store.
pub(super) async fn list_latest(
    State(app): State<HttpApp>,
    request: Request,
) -> Result<Response, ErrorResponse> {
    if let RequestTarget::Leader = choose_target(&app)? {
        return forwarding::forward_to_leader(&app, &app.queues.list, request).await;
    }
    let snapshots = app.backend.snapshotter.clone();
    let work = async move { Ok(LatestResponse::from(&snapshots.list_snapshots().await?)) };
    let limit = app.config.limits.list_timeout;
    let latest: LatestResponse = run_queued(&app, &app.queues.list, limit, work).await?;
    Ok(Json(latest).into_response())
}

/// Runs `work` when its turn in the queue comes. The work continues, and keeps its turn, if the caller disconnects or
/// times out: otherwise a short client timeout would abort every snapshot of a large etcd.
async fn run_queued<T: Send + 'static>(
    app: &HttpApp,
    lane: &RequestQueue,
    limit: Duration,
    work: impl Future<Output = Result<T, SnapshotRequestError>> + Send + 'static,
) -> Result<T, ErrorResponse> {
    let turn = lane.acquire(app.config.limits.queue_timeout).await?;
    let now = app.shutdown.immediate.clone();
    let task = app.shutdown.tasks.spawn(async move {
        let done = now.run_until_cancelled(work).await;
        drop(turn);
        done.unwrap_or(Err(SnapshotRequestError::Aborted))
    });
    match timeout(limit, task).await {
        Ok(Ok(done)) => Ok(done?),
        Ok(Err(_)) => Err(SnapshotRequestError::Aborted.into()),
        Err(_) => {
            let text = "still running after the request timeout; continues in the background";
            Err(ErrorResponse::new(StatusCode::GATEWAY_TIMEOUT, text))
        }
    }
}
