//! Promotes the own member from learner to voter once it has caught up.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_telemetry::ErrorChain;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    CallError, Connect, MaintenanceMetrics, MaintenanceOutcome, call_with_timeout,
    connect_with_timeout, elapsed_since, read_status,
};

/// Timeout of a promotion, a configuration change that needs the quorum.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a lagging learner is checked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Longest pause after failures.
const MAX_RETRY_INTERVAL: Duration = Duration::from_mins(1);

/// etcd's messages for a member that is a voter already, and for a lagging one. Both have the same gRPC code.
const NOT_A_LEARNER: &str = "etcdserver: can only promote a learner member";
const NOT_READY: &str =
    "etcdserver: can only promote a learner member which is in sync with leader";

/// etcd's message when a learner receives a request that only voters answer.
const NOT_FOR_LEARNERS: &str = "etcdserver: rpc not supported for learner";
const LEARNER_HINT: &str = "a learner cannot promote itself: add voting members to --service-endpoints, or after the own member in --endpoints";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromotionOutcome {
    /// It was a voter already.
    AlreadyVoter,
    Promoted,
    /// It still lags.
    NotReady,
}

/// Promotes the own member if it is a learner that has caught up.
///
/// # Errors
/// The own member or the member that promotes it does not answer or refuses.
pub async fn promote(
    connect: &dyn Connect,
    metrics: &dyn MaintenanceMetrics,
) -> Result<PromotionOutcome, CallError> {
    let mut own = connect_with_timeout(connect.connect_own()).await?;
    let status = read_status(&mut own).await?;
    if !status.is_learner {
        return Ok(PromotionOutcome::AlreadyVoter);
    }
    let member = status.member;
    // A learner rejects membership changes, so a voter has to promote it.
    let mut cluster = connect_with_timeout(connect.connect_cluster()).await?;
    let start = Timestamp::now();
    let answer = call_with_timeout(
        "promote member",
        PROMOTION_TIMEOUT,
        cluster.member_promote(member.0),
    );
    match answer.await {
        Ok(_) => {
            info!(member = %member, "learner promoted");
            metrics.record_promotion(MaintenanceOutcome::Succeeded, elapsed_since(start));
            Ok(PromotionOutcome::Promoted)
        }
        Err(error) => match error.etcd_message() {
            // Another client promoted it meanwhile.
            Some(NOT_A_LEARNER) => Ok(PromotionOutcome::AlreadyVoter),
            Some(NOT_READY) => Ok(PromotionOutcome::NotReady),
            _ => {
                metrics.record_promotion(MaintenanceOutcome::Failed, elapsed_since(start));
                Err(error)
            }
        },
    }
}

/// Retries until the own member is a voter, or until cancelled. Returns whether it is a voter.
pub async fn promote_until_voter(
    connect: &dyn Connect,
    metrics: &dyn MaintenanceMetrics,
    cancel: &CancellationToken,
) -> bool {
    let mut pause = RETRY_INTERVAL;
    loop {
        let outcome = tokio::select! {
            () = cancel.cancelled() => return false,
            outcome = promote(connect, metrics) => outcome,
        };
        pause = match outcome {
            Ok(PromotionOutcome::AlreadyVoter | PromotionOutcome::Promoted) => return true,
            Ok(PromotionOutcome::NotReady) => {
                debug!("learner is still catching up");
                RETRY_INTERVAL
            }
            Err(error) => {
                let hint = error
                    .etcd_message()
                    .filter(|message| *message == NOT_FOR_LEARNERS)
                    .map(|_| LEARNER_HINT);
                warn!(error = %ErrorChain(&error), hint, "failed to promote the learner, retrying");
                (pause * 2).min(MAX_RETRY_INTERVAL)
            }
        };
        tokio::select! {
            () = cancel.cancelled() => return false,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
