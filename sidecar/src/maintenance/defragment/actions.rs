//! Calls that change a member, and waiting for their effect.

use std::time::Duration;

use mainstay_etcd::RequestError;
use mainstay_ids::{MemberId, RaftIndex};
use tokio::time::{sleep, timeout};

use crate::maintenance::{
    CallError, Connect, REQUEST_TIMEOUT, call_with_timeout, confirm_quorum, connect_with_timeout,
    read_status,
};

/// Timeout for a member to catch up after its defragmentation.
pub(super) const RECOVERY_TIMEOUT: Duration = Duration::from_mins(2);
/// Timeout of a leadership transfer: etcd itself times out after one and a half election timeouts.
const MOVE_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn defragment(
    connect: &dyn Connect,
    url: &str,
    limit: Duration,
) -> Result<(), CallError> {
    let mut client = connect_with_timeout(connect.connect_to(url)).await?;
    call_with_timeout("defragment", limit, client.defragment()).await?;
    Ok(())
}

/// Moves leadership and waits until the old leader reports another leader.
pub(super) async fn move_leader(
    connect: &dyn Connect,
    leader: MemberId,
    url: &str,
    to: MemberId,
) -> Result<(), CallError> {
    let mut client = connect_with_timeout(connect.connect_to(url)).await?;
    call_with_timeout("move leadership", MOVE_TIMEOUT, client.move_leader(to.0)).await?;
    let follows = async {
        loop {
            let status = read_status(&mut client).await?;
            if status.leader.is_some_and(|now| now != leader) {
                return Ok(());
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    match timeout(MOVE_TIMEOUT, follows).await {
        Ok(outcome) => outcome,
        Err(_) => Err(CallError::Request {
            call: "move leadership",
            source: RequestError::Timeout {
                limit: MOVE_TIMEOUT,
            },
        }),
    }
}

/// Waits until a member answers a linearizable read and has applied everything the cluster had when the wait started.
/// Returns `false` on timeout.
pub(super) async fn wait_until_healthy(connect: &dyn Connect, url: &str) -> bool {
    let healthy = async {
        let mut target = None;
        loop {
            if let Ok(true) = is_healthy(connect, url, &mut target).await {
                return;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(RECOVERY_TIMEOUT, healthy).await.is_ok()
}

async fn is_healthy(
    connect: &dyn Connect,
    url: &str,
    target: &mut Option<RaftIndex>,
) -> Result<bool, CallError> {
    // Fixed once: under load the index keeps growing and would never be reached.
    let RaftIndex(target) = if let Some(target) = *target {
        target
    } else {
        let mut cluster = connect_with_timeout(connect.connect_cluster()).await?;
        let status = call_with_timeout("status", REQUEST_TIMEOUT, cluster.status()).await?;
        *target.insert(RaftIndex(status.raft_index()))
    };
    let mut client = connect_with_timeout(connect.connect_to(url)).await?;
    let status = call_with_timeout("status", REQUEST_TIMEOUT, client.status()).await?;
    if status.leader() == 0 || status.raft_applied_index() < target {
        return Ok(false);
    }
    confirm_quorum(&client).await?;
    Ok(true)
}
