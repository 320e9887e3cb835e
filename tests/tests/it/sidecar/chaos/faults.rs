//! The faults and their repair.

use std::time::Duration;

use etcd_client::CompactionOptions;
use mainstay_testkit::{EtcdCluster, FaultProxy, ProxyMode};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use tokio::time::timeout;

use super::super::SidecarHarness;

const FAULT_TIMEOUT: Duration = Duration::from_secs(3);
/// Failure modes of the store.
const STORE_FAULTS: [ProxyMode; 5] = [
    ProxyMode::Closed,
    ProxyMode::RespondWith(500),
    ProxyMode::RespondWith(503),
    ProxyMode::Unresponsive,
    ProxyMode::Slow(50_000),
];

/// A fault, or an action of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChaosFault {
    MemberKilled(usize),
    MemberPaused(usize),
    MemberIsolated(usize),
    LeaderMoved,
    SidecarKilled(usize),
    SidecarStopped(usize),
    Store(ProxyMode),
    /// Compacts etcd and keeps this many revisions.
    Compaction(i64),
    Defragmentation(usize),
    FullRequested,
}

impl ChaosFault {
    pub(super) fn pick_random(random: &mut StdRng) -> Self {
        let member = random.random_range(0..3);
        match random.random_range(0..20) {
            0..3 => Self::MemberKilled(member),
            3..5 => Self::MemberPaused(member),
            5..7 => Self::MemberIsolated(member),
            7..9 => Self::LeaderMoved,
            9..11 => Self::SidecarKilled(member),
            11 => Self::SidecarStopped(member),
            12..15 => Self::Store(*STORE_FAULTS.choose(random).unwrap()),
            15..18 => Self::Compaction(random.random_range(0..1_000)),
            18 => Self::Defragmentation(member),
            _ => Self::FullRequested,
        }
    }

    /// Two faults of the same process conflict: a killed process cannot be paused or killed again.
    pub(super) fn conflicts_with(&self, other: &Self) -> bool {
        match (self.process_index(), other.process_index()) {
            (Some(one), Some(another)) => one == another,
            _ => matches!((self, other), (Self::Store(_), Self::Store(_))),
        }
    }

    /// Index of the process: members first, then sidecars.
    fn process_index(&self) -> Option<usize> {
        match self {
            Self::MemberKilled(member)
            | Self::MemberPaused(member)
            | Self::Defragmentation(member) => Some(*member),
            Self::SidecarKilled(sidecar) | Self::SidecarStopped(sidecar) => Some(3 + sidecar),
            _ => None,
        }
    }

    pub(super) async fn inject(&self, stage: &mut SidecarHarness, gate: &FaultProxy) {
        match *self {
            Self::MemberKilled(member) => stage.cluster.members[member].kill(),
            Self::MemberPaused(member) => stage.cluster.members[member].pause(),
            Self::MemberIsolated(member) => stage.cluster.isolate(member),
            Self::SidecarKilled(sidecar) => stage.sidecars[sidecar].kill(),
            Self::SidecarStopped(sidecar) => drop(stage.sidecars[sidecar].stop().await),
            Self::Store(mode) => gate.set_mode(mode),
            Self::LeaderMoved => move_leader(&stage.cluster).await,
            Self::Compaction(kept) => compact(&stage.cluster, kept).await,
            Self::Defragmentation(member) => defragment(&stage.cluster, member).await,
            Self::FullRequested => request_full_snapshot(stage).await,
        }
    }

    pub(super) async fn clear(&self, stage: &mut SidecarHarness, gate: &FaultProxy) {
        match *self {
            Self::MemberKilled(member) => stage.cluster.members[member].relaunch(),
            Self::MemberPaused(member) => stage.cluster.members[member].resume(),
            Self::MemberIsolated(_) => stage.cluster.heal(),
            Self::SidecarKilled(sidecar) | Self::SidecarStopped(sidecar) => {
                stage.sidecars[sidecar].restart().await;
            }
            Self::Store(_) => gate.set_mode(ProxyMode::Open),
            _ => {}
        }
    }
}

/// Failures are ignored: another fault may prevent the operation.
async fn move_leader(cluster: &EtcdCluster) {
    let moved = async {
        let leader = cluster.find_leader().await?;
        let to = &cluster.members[cluster.next_member(leader)];
        let to = to.try_client().await.ok()?.status().await.ok()?;
        let mut client = cluster.members[leader].try_client().await.ok()?;
        client.move_leader(to.header()?.member_id()).await.ok()
    };
    timeout(FAULT_TIMEOUT, moved).await.ok();
}

/// As above.
async fn compact(cluster: &EtcdCluster, kept: i64) {
    let compacted = async {
        let leader = cluster.find_leader().await?;
        let mut client = cluster.members[leader].try_client().await.ok()?;
        let now = client.get("k", None).await.ok()?.header()?.revision();
        let options = CompactionOptions::new().with_physical();
        client
            .compact((now - kept).max(1), Some(options))
            .await
            .ok()
    };
    timeout(FAULT_TIMEOUT, compacted).await.ok();
}

/// As above.
async fn defragment(cluster: &EtcdCluster, member: usize) {
    let defragmented = async {
        let mut client = cluster.members[member].try_client().await.ok()?;
        client.defragment().await.ok()
    };
    timeout(FAULT_TIMEOUT, defragmented).await.ok();
}

/// As above.
async fn request_full_snapshot(stage: &SidecarHarness) {
    for sidecar in &stage.sidecars {
        if sidecar.is_leader().await {
            timeout(FAULT_TIMEOUT, sidecar.request("/snapshot/full"))
                .await
                .ok();
        }
    }
}
