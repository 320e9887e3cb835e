//! A cluster with a sidecar per member and a store for their backups.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use mainstay_ids::Revision;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdRelease, SidecarOptions, SidecarProcess};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

use super::{AckedWrites, SidecarStore};
use crate::support::{EtcdState, RestorerBackup, start_etcd_on};

/// Detects a hang: every expected state is reached earlier, also on a busy machine.
pub(super) const TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Poll interval for the measured and printed time of a leadership change.
const FAST_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Short periods, no scheduled full snapshot, and no garbage collection during a test.
///
/// The election timeouts are the defaults. With shorter ones a busy core looks like a lost quorum, and the sidecar drops
/// what it captured.
const DEFAULT_FLAGS: [(&str, &str); 4] = [
    ("delta-snapshot-period", "1s"),
    ("schedule", "0 0 1 1 *"),
    ("backoff-threshold-time", "1s"),
    ("store-retry-timeout", "30s"),
];

/// For tests in which the store fails: the error is reported soon.
pub(crate) const SHORT_RETRY_TIMEOUT: (&str, &str) = ("store-retry-timeout", "1s");

const ENV_VARIABLES: [(&str, &str); 2] = [
    ("MAINSTAY_GARBAGE_COLLECTION_PERIOD", "24h"),
    ("MAINSTAY_DELTA_SNAPSHOT_RETENTION_PERIOD", "240h"),
];

/// The setup of a sidecar test.
pub(crate) struct SidecarHarness {
    pub(crate) cluster: EtcdCluster,
    pub(crate) sidecars: Vec<SidecarProcess>,
    pub(crate) store: SidecarStore,
    /// Directory of a Local store; removed with the stage.
    temp_dir: Option<TempDir>,
}

impl SidecarHarness {
    /// Members that can be partitioned, and a directory for the backups.
    pub(crate) async fn start_local(version: EtcdRelease, size: usize) -> Self {
        Self::start_local_with(version, size, &EtcdOptions::new(), &[]).await
    }

    /// The same with options of etcd and flags of the sidecars.
    pub(crate) async fn start_local_with(
        version: EtcdRelease,
        size: usize,
        options: &EtcdOptions,
        flags: &[(&str, &str)],
    ) -> Self {
        let home = TempDir::new().unwrap();
        let cluster = EtcdCluster::start_with_proxies(version, size, options).await;
        let mut stage = Self::start_on(cluster, SidecarStore::local(home.path()), flags).await;
        stage.temp_dir = Some(home);
        stage
    }

    /// Starts a sidecar for each member of a cluster.
    pub(crate) async fn start_on(
        cluster: EtcdCluster,
        store: SidecarStore,
        flags: &[(&str, &str)],
    ) -> Self {
        let sidecars = cluster.members.iter().map(|member| {
            let options = Self::sidecar_options(member.client_url(), &store).flags(flags);
            SidecarProcess::start(options)
        });
        let sidecars = join_all(sidecars).await;
        Self {
            cluster,
            sidecars,
            store,
            temp_dir: None,
        }
    }

    /// The options of a sidecar.
    pub(crate) fn sidecar_options(client_url: &str, place: &SidecarStore) -> SidecarOptions {
        let options = SidecarOptions::for_member(client_url).flags(&DEFAULT_FLAGS);
        let with =
            |options: SidecarOptions, (name, value): (&str, &str)| options.variable(name, value);
        place.configure_sidecar(ENV_VARIABLES.into_iter().fold(options, with))
    }

    pub(crate) fn backup(&self) -> &RestorerBackup {
        &self.store.backup
    }

    pub(crate) fn client_urls(&self) -> Vec<String> {
        let members = self.cluster.members.iter();
        members
            .map(|member| member.client_url().to_owned())
            .collect()
    }

    /// Waits for a new leader whose sidecar has taken over; returns its index. If members elect again meanwhile, the last
    /// elected one counts. Prints the time.
    pub(crate) async fn wait_for_handover(&self, before: usize) -> usize {
        let deadline = Instant::now() + TIMEOUT;
        let (mut after, mut since) = self.wait_for_new_leader(before).await;
        while !self.sidecars[after].is_leader().await {
            assert!(
                Instant::now() < deadline,
                "m{after} is leader, but its sidecar is not"
            );
            sleep(FAST_POLL_INTERVAL).await;
            let asked = Instant::now();
            let now = self.cluster.find_leader().await;
            if let Some(now) = now.filter(|now| *now != after) {
                (after, since) = (now, asked);
            }
        }
        let took = since.elapsed();
        eprintln!("m{after}'s sidecar took over {took:?} after m{after} was elected");
        after
    }

    /// Transfers leadership away from a member if it is the leader.
    pub(crate) async fn move_leader_from(&self, before: usize) {
        let members = &self.cluster.members;
        let to = members[self.cluster.next_member(before)].member_id().await;
        let deadline = Instant::now() + TIMEOUT;
        while self.cluster.leader().await == before {
            let moved = members[before].client().await.move_leader(to.0).await;
            let Err(error) = moved else { return };
            // The member may have lost leadership in between.
            assert!(
                Instant::now() < deadline,
                "failed to transfer leadership to {to}: {error}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The first other member that reports to be leader, and a time before that.
    async fn wait_for_new_leader(&self, before: usize) -> (usize, Instant) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let others = self.cluster.members.iter().enumerate();
            for (index, member) in others.filter(|(index, _)| *index != before) {
                let asked = Instant::now();
                let says = async {
                    let status = member.try_client().await.ok()?.status().await.ok()?;
                    Some(status.leader() == status.header()?.member_id())
                };
                if let Ok(Some(true)) = tokio::time::timeout(POLL_INTERVAL * 4, says).await {
                    return (index, asked);
                }
            }
            assert!(Instant::now() < deadline, "no new leader after m{before}");
            sleep(FAST_POLL_INTERVAL).await;
        }
    }

    /// Waits until the log of a sidecar shows that its session has ended: no upload is in flight any more.
    pub(crate) async fn wait_for_session_end(&self, sidecar: usize) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let log = self.sidecars[sidecar].read_log();
            let mut changes = log.lines().filter(|line| line.contains("role changed"));
            let last = changes.next_back();
            if last.is_none_or(|last| !last.contains("to=\"leader\"")) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the sidecar of m{sidecar} is still leader"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a sidecar has polled its member `times` more.
    pub(crate) async fn wait_for_leader_checks(&self, sidecar: usize, times: usize) {
        let deadline = Instant::now() + TIMEOUT;
        let (mut looks, mut before) = (0, Value::Null);
        while looks <= times {
            let at = self.sidecars[sidecar].status().await["etcd"]["at"].clone();
            looks += usize::from(at != before);
            before = at;
            assert!(
                Instant::now() < deadline,
                "the sidecar of m{sidecar} does not poll its member"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The names of the objects that a sidecar has stored, from its log.
    pub(crate) fn objects_stored_by(&self, sidecar: usize) -> BTreeSet<String> {
        let log = self.sidecars[sidecar].read_log();
        let stored = log.lines().filter(|line| {
            ["delta stored", "full snapshot stored"]
                .iter()
                .any(|message| line.contains(message))
        });
        let name = |line: &str| {
            let (_, key) = line.split_once("object_key=")?;
            let key = key.split_whitespace().next()?;
            Some(key.rsplit('/').next()?.to_owned())
        };
        stored.filter_map(name).collect()
    }

    /// Waits until exactly the sidecar of the current leader is leader; returns its index.
    pub(crate) async fn wait_for_single_leader(&self) -> usize {
        let since = Instant::now();
        loop {
            let mut leading = Vec::new();
            for (index, sidecar) in self.sidecars.iter().enumerate() {
                if sidecar.is_leader().await {
                    leading.push(index);
                }
            }
            let leader = self.cluster.leader().await;
            if leading == [leader] {
                return leader;
            }
            assert!(
                since.elapsed() < TIMEOUT,
                "m{leader} is leader, but the leading sidecars are {leading:?}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the sidecar of the current leader is leader as well; returns its index. Leadership may move meanwhile.
    pub(crate) async fn wait_until_settled(&self) -> usize {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let leader = self.cluster.leader().await;
            if self.sidecars[leader].is_leader().await {
                return leader;
            }
            assert!(
                Instant::now() < deadline,
                "the sidecar of m{leader} does not take over"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until etcd's current revision is stored; returns it.
    pub(crate) async fn wait_until_stored(&self) -> Revision {
        let leader = self.wait_until_settled().await;
        let now = self.cluster.members[leader].revision().await;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let leader = self.wait_until_settled().await;
            let status = self.sidecars[leader].try_status().await.unwrap_or_default();
            if stored_revision(&status) >= now {
                return now;
            }
            assert!(
                Instant::now() < deadline,
                "revision {now} is not stored:\n{status:#}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the sidecar of the leader has captured a revision.
    pub(crate) async fn wait_until_captured(&self, revision: Revision) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let leader = self.wait_until_settled().await;
            let status = self.sidecars[leader].try_status().await.unwrap_or_default();
            if status["captured"].as_i64().unwrap_or_default() >= revision.0 {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "revision {revision} is not captured:\n{status:#}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Verifies the whole bucket, and that its newest state equals the live cluster's. Returns its revision.
    pub(crate) async fn assert_restores(&self, context: &str) -> Revision {
        let reached = self.backup().verify();
        self.assert_restores_at(reached, None, context).await;
        reached
    }

    /// As [`comes_back`](Self::comes_back), with every acknowledged write, and without a gap from the first full snapshot
    /// on.
    pub(crate) async fn assert_restores_with(&self, acks: &AckedWrites, context: &str) -> Revision {
        let stored = self.wait_until_stored().await;
        let reached = self.backup().verify();
        assert!(
            reached >= stored,
            "{context}: revision {stored} was stored, but only {reached} is restorable"
        );
        self.assert_restores_at(reached, Some(acks), context).await;
        let ranges = self.backup().restorable_ranges();
        let names = self.backup().snapshot_names();
        assert_eq!(ranges.len(), 1, "{context}: a gap: {ranges:?} {names:#?}");
        reached
    }

    async fn assert_restores_at(
        &self,
        revision: Revision,
        acks: Option<&AckedWrites>,
        context: &str,
    ) {
        let source = &self.cluster.members[self.cluster.leader().await];
        let state = EtcdState::read_at(source, revision).await;
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        self.backup().restore_at(&data_dir, revision);
        let restored = start_etcd_on(source.version(), &data_dir).await;
        state.assert_restored(&restored, context).await;
        if let Some(acks) = acks {
            acks.assert_present(&state.keys, revision, context);
        }
    }

    /// The sum of a metric over all running sidecars.
    pub(crate) async fn sum_metric(&self, series: &str) -> u64 {
        let mut sum = 0;
        for sidecar in &self.sidecars {
            if sidecar.try_status().await.is_some() {
                sum += sidecar.read_metric(series).await;
            }
        }
        sum
    }
}

/// The newest stored revision that a sidecar reports.
fn stored_revision(status: &Value) -> Revision {
    let revision = |snapshot: &str| {
        status[snapshot]["lastRevision"]
            .as_i64()
            .unwrap_or_default()
    };
    Revision(revision("lastFull").max(revision("lastDelta")))
}
