//! Snapshots on demand: taken here by the one that leads, asked of the leader's sidecar by the others.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::time::timeout;
use tracing::info;

use super::answer::Problem;
use super::delegate;
use super::lane::Lane;
use super::model::{Latest, Snapshot};
use super::routes::App;
use crate::ask::{AskError, Finality};
use crate::state::{Standing, Stored};

/// `?final=…`
#[derive(Debug, Deserialize)]
pub(super) struct Wish {
    #[serde(default, rename = "final")]
    is_final: String,
}

impl Wish {
    /// The words Go takes for booleans; nothing is false.
    fn finality(&self) -> Result<Finality, Problem> {
        match self.is_final.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Finality::Final),
            "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Finality::Ordinary),
            _ => Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "final is neither true nor false",
            )),
        }
    }
}

/// Who has to answer.
enum Duty {
    Here,
    Leader,
}

fn duty(app: &App) -> Result<Duty, Problem> {
    let known = app.parts.view.borrow();
    match known.standing {
        _ if !known.has_store => Err(AskError::NoStore.into()),
        Standing::Leader => Ok(Duty::Here),
        Standing::Unknown | Standing::Learner | Standing::Follower => Ok(Duty::Leader),
    }
}

/// Takes a full snapshot.
pub(super) async fn full(
    State(app): State<App>,
    wish: Result<Query<Wish>, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Result<Response, Problem> {
    let Query(wish) =
        wish.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    let finality = wish.finality()?;
    if let Duty::Leader = duty(&app)? {
        return delegate::forward(&app, &app.lanes.full, request).await;
    }
    info!("a full snapshot was asked for");
    let snapshots = app.parts.snapshots.clone();
    let work = async move { snapshots.full(finality).await };
    let limit = app.config.limits.snapshot_time;
    let stored: Stored = in_turn(&app, &app.lanes.full, limit, work).await?;
    Ok(Json(Snapshot::from(&stored)).into_response())
}

/// Stores what was captured; `null` when nothing was.
pub(super) async fn delta(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    if let Duty::Leader = duty(&app)? {
        return delegate::forward(&app, &app.lanes.delta, request).await;
    }
    let snapshots = app.parts.snapshots.clone();
    let work = async move { snapshots.delta().await };
    let limit = app.config.limits.snapshot_time;
    let stored: Option<Stored> = in_turn(&app, &app.lanes.delta, limit, work).await?;
    Ok(Json(stored.as_ref().map(Snapshot::from)).into_response())
}

/// Lists the store.
pub(super) async fn latest(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    if let Duty::Leader = duty(&app)? {
        return delegate::forward(&app, &app.lanes.list, request).await;
    }
    let snapshots = app.parts.snapshots.clone();
    let work = async move { Ok(Latest::from(&snapshots.list().await?)) };
    let limit = app.config.limits.list_time;
    let latest: Latest = in_turn(&app, &app.lanes.list, limit, work).await?;
    Ok(Json(latest).into_response())
}

/// Does the work when its turn has come. It goes on, and keeps its turn, when the caller goes away or has waited
/// long enough: half a snapshot is of no use to anybody.
async fn in_turn<T: Send + 'static>(
    app: &App,
    lane: &Lane,
    limit: Duration,
    work: impl Future<Output = Result<T, AskError>> + Send + 'static,
) -> Result<T, Problem> {
    let turn = lane.enter(app.config.limits.queue_time).await?;
    let now = app.ends.now.clone();
    let task = app.ends.tasks.spawn(async move {
        let done = now.run_until_cancelled(work).await;
        drop(turn);
        done.unwrap_or(Err(AskError::Ended))
    });
    match timeout(limit, task).await {
        Ok(Ok(done)) => Ok(done?),
        Ok(Err(_)) => Err(AskError::Ended.into()),
        Err(_) => {
            let text = "it takes longer than a request may, and goes on";
            Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, text))
        }
    }
}
