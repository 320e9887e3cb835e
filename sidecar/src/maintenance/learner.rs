//! Makes a voter of the own member, once it has caught up.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_ids::MemberId;
use mainstay_telemetry::Chain;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{ANSWER, CallError, Connect, MaintenanceMetrics, Outcome, ask, reach, since};

/// How long a promotion may take: it is a configuration change the quorum agrees on.
const PROMOTION: Duration = Duration::from_secs(30);
/// How soon a learner that lags is asked about again.
const RECHECK: Duration = Duration::from_secs(5);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// etcd's words for a member that votes already, and for one that lags. Both come with the same code.
const NOT_A_LEARNER: &str = "etcdserver: can only promote a learner member";
const NOT_READY: &str =
    "etcdserver: can only promote a learner member which is in sync with leader";

/// etcd's words of a learner that is asked for what only voters answer.
const NOT_FOR_LEARNERS: &str = "etcdserver: rpc not supported for learner";
const HINT: &str = "a learner cannot promote itself: name voters with --service-endpoints, or behind the own member in --endpoints";

/// What the own member is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// It voted before.
    Voter,
    /// It votes now.
    Promoted,
    /// It still lags behind the leader.
    NotReady,
}

/// Promotes the own member if it is a learner that has caught up.
///
/// # Errors
/// The own member, or whoever is asked to promote it, does not answer or refuses.
pub async fn promote(
    connect: &dyn Connect,
    metrics: &dyn MaintenanceMetrics,
) -> Result<Promotion, CallError> {
    let mut own = reach(connect.own()).await?;
    let status = ask("status", ANSWER, own.status()).await?;
    if !status.is_learner() {
        return Ok(Promotion::Voter);
    }
    let call = "status";
    let header = status.header().ok_or(CallError::NoHeader { call })?;
    let member = MemberId(header.member_id());
    let mut cluster = reach(connect.cluster()).await?;
    let start = Timestamp::now();
    let answer = ask(
        "promote the member",
        PROMOTION,
        cluster.member_promote(member.0),
    );
    match answer.await {
        Ok(_) => {
            info!(member = %member, "learner promoted");
            metrics.promoted(Outcome::Succeeded, since(start));
            Ok(Promotion::Promoted)
        }
        Err(error) => match error.refusal() {
            // Somebody else was faster.
            Some(NOT_A_LEARNER) => Ok(Promotion::Voter),
            Some(NOT_READY) => Ok(Promotion::NotReady),
            _ => {
                metrics.promoted(Outcome::Failed, since(start));
                Err(error)
            }
        },
    }
}

/// Tries until the own member votes, or until cancelled. Returns whether it votes.
pub async fn until_voter(
    connect: &dyn Connect,
    metrics: &dyn MaintenanceMetrics,
    cancel: &CancellationToken,
) -> bool {
    let mut pause = RECHECK;
    loop {
        let outcome = tokio::select! {
            () = cancel.cancelled() => return false,
            outcome = promote(connect, metrics) => outcome,
        };
        pause = match outcome {
            Ok(Promotion::Voter | Promotion::Promoted) => return true,
            Ok(Promotion::NotReady) => {
                debug!("learner is still catching up");
                RECHECK
            }
            Err(error) => {
                let hint = error
                    .refusal()
                    .filter(|said| *said == NOT_FOR_LEARNERS)
                    .map(|_| HINT);
                warn!(error = %Chain(&error), hint, "could not promote the learner");
                (pause * 2).min(LONGEST_PAUSE)
            }
        };
        tokio::select! {
            () = cancel.cancelled() => return false,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
