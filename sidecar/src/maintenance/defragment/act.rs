//! The calls that change something, and waiting for what they lead to.

use std::time::Duration;

use mainstay_ids::{MemberId, RaftIndex};
use tokio::time::{sleep, timeout};

use crate::maintenance::{REQUEST_TIMEOUT, CallError, Connect, call_with_timeout, connect_with_timeout, read_linearizably};

/// How long a member may take to catch up after its defragmentation.
pub(super) const RECOVERY_TIMEOUT: Duration = Duration::from_mins(2);
/// How long a change of leadership may take: etcd itself gives up after an election and a half.
const MOVE_TIMEOUT: Duration = Duration::from_secs(15);
/// How often to look.
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

/// Moves leadership and waits until the old leader follows somebody.
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
            let status = call_with_timeout("status", REQUEST_TIMEOUT, client.status()).await?;
            if status.leader() != 0 && status.leader() != leader.0 {
                return Ok(());
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    match timeout(MOVE_TIMEOUT, follows).await {
        Ok(outcome) => outcome,
        Err(_) => Err(CallError::Timeout {
            call: "move leadership",
            limit: MOVE_TIMEOUT,
        }),
    }
}

/// Waits until a member reads with the quorum and has applied what the cluster had when it began to wait.
/// Returns whether it came to that.
pub(super) async fn wait_until_healthy(connect: &dyn Connect, url: &str) -> bool {
    let well = async {
        let mut target = None;
        loop {
            if let Ok(true) = is_healthy(connect, url, &mut target).await {
                return;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(RECOVERY_TIMEOUT, well).await.is_ok()
}

async fn is_healthy(
    connect: &dyn Connect,
    url: &str,
    target: &mut Option<RaftIndex>,
) -> Result<bool, CallError> {
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
    read_linearizably(&client).await?;
    Ok(true)
}
