//! State shared by all reconciles: clients, caches, settings, and local state that lives between two reconciles.
//!
//! Invariant: losing the local state (a restart) costs a query or a write without effect, never a wrong decision.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::reflector::ObjectRef;
use mainstay_coordination::Coordinator;
use mainstay_manifests::OperatorSettings;
use tokio_util::task::TaskTracker;

use crate::caches::{LazyEtcd, Stores};
use crate::intervals;
use crate::metrics::ControllerMetrics;
use crate::model::{
    EtcdKey, FallbackSnapshot, LogRead, Observation, ReconcilePolicy, SnapshotRequest, Thresholds,
};
use crate::probe::ReconcileProbe;
use crate::write_scheduler::WriteScheduler;
use crate::writer::Writer;

pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) stores: Stores,
    pub(crate) settings: OperatorSettings,
    pub(crate) policy: ReconcilePolicy,
    pub(crate) thresholds: Thresholds,
    pub(crate) writer: Writer,
    pub(crate) metrics: ControllerMetrics,
    pub(crate) local: LocalState,
    /// Requests that take longer than a reconcile, such as snapshots.
    pub(crate) background_tasks: TaskTracker,
    pub(crate) trigger: ReconcileTrigger,
    pub(crate) run_counter: AtomicU64,
    pub(crate) write_scheduler: WriteScheduler,
    pub(crate) probe: ReconcileProbe,
}

impl Context {
    /// An ID for a reconcile, for `lastOperation.runID`.
    pub(crate) fn next_run_id(&self) -> String {
        let run = self.run_counter.fetch_add(1, Ordering::Relaxed);
        format!("{:x}-{run:x}", std::process::id())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Requests a reconcile without a watch event, for example when a background task has ended.
#[derive(Clone, Debug)]
pub(crate) struct ReconcileTrigger(pub(crate) mpsc::UnboundedSender<ObjectRef<LazyEtcd>>);

impl ReconcileTrigger {
    pub(crate) fn request(&self, key: &EtcdKey) {
        // The receiver is gone only while the process stops.
        self.0
            .unbounded_send(ObjectRef::new(&key.name).within(&key.namespace))
            .ok();
    }
}

/// Per-cluster state between two reconciles, in memory only.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalState(Arc<Mutex<LocalStateInner>>);

#[derive(Debug, Default)]
struct LocalStateInner {
    clusters: HashMap<EtcdKey, ClusterLocalState>,
}

#[derive(Clone, Debug, Default)]
struct ClusterLocalState {
    failures: u32,
    made_progress: bool,
    applied: HashMap<String, String>,
    deleted: BTreeSet<String>,
    snapshot_request: SnapshotRequest,
    expansion_refused: Option<RefusedExpansion>,
    queried_at: Option<Timestamp>,
    incomplete_queries: u32,
    /// With the uid of the Etcd it belongs to.
    coordinator: Option<(String, Arc<Coordinator>)>,
    fallback: FallbackSnapshot,
    full_snapshot: Option<PendingFullSnapshot>,
    log_read: Option<LogRead>,
    status_base_version: Option<String>,
}

/// A full snapshot whose Lease the caches may not have at its new revision yet.
#[derive(Clone, Copy, Debug)]
struct PendingFullSnapshot {
    /// Revision of the cached Lease when the snapshot was stored.
    lease_revision: Option<i64>,
    revision: i64,
}

#[derive(Clone, Debug)]
struct RefusedExpansion {
    bytes: u64,
    reason: String,
    at: Timestamp,
}

impl LocalState {
    fn lock(&self) -> MutexGuard<'_, LocalStateInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_cluster<T>(
        &self,
        key: &EtcdKey,
        change: impl FnOnce(&mut ClusterLocalState) -> T,
    ) -> T {
        let mut state = self.lock();
        change(state.clusters.entry(key.clone()).or_default())
    }

    /// Counts a failed reconcile and returns the failures in a row. A reconcile that applied an object starts at 1 again,
    /// so that a long creation with transient errors is not slowed down by the backoff.
    pub(crate) fn record_failure(&self, key: &EtcdKey) -> u32 {
        self.with_cluster(key, |cluster| {
            let got_further = std::mem::take(&mut cluster.made_progress);
            let before = if got_further { 0 } else { cluster.failures };
            cluster.failures = before.saturating_add(1);
            cluster.failures
        })
    }

    pub(crate) fn record_success(&self, key: &EtcdKey) {
        self.with_cluster(key, |cluster| cluster.failures = 0);
    }

    /// State of the snapshot before a disruptive change.
    pub(crate) fn set_snapshot_request(&self, key: &EtcdKey, state: SnapshotRequest) {
        self.with_cluster(key, |cluster| cluster.snapshot_request = state);
    }

    pub(crate) fn snapshot_request(&self, key: &EtcdKey) -> SnapshotRequest {
        self.with_cluster(key, |cluster| cluster.snapshot_request.clone())
    }

    /// The API server refused to expand the PVCs to this size.
    pub(crate) fn record_expansion_refused(
        &self,
        key: &EtcdKey,
        bytes: u64,
        cause: String,
        at: Timestamp,
    ) {
        self.with_cluster(key, |cluster| {
            cluster.expansion_refused = Some(RefusedExpansion {
                bytes,
                reason: cause,
                at,
            });
        });
    }

    /// Why an expansion to this size was refused. Expires, because a quota or storage class may have changed since.
    pub(crate) fn expansion_refusal(
        &self,
        key: &EtcdKey,
        bytes: u64,
        now: Timestamp,
    ) -> Option<String> {
        self.with_cluster(key, |cluster| {
            let refused = cluster.expansion_refused.as_ref();
            let is_lately = |at| now.duration_since(at).unsigned_abs() < intervals::EXPANSION_RETRY;
            refused
                .filter(|refused| refused.bytes == bytes && is_lately(refused.at))
                .map(|refused| refused.reason.clone())
        })
    }

    /// etcd was queried for its members.
    pub(crate) fn record_query(&self, key: &EtcdKey, at: Timestamp) {
        self.with_cluster(key, |cluster| cluster.queried_at = Some(at));
    }

    pub(crate) fn last_query(&self, key: &EtcdKey) -> Option<Timestamp> {
        self.with_cluster(key, |cluster| cluster.queried_at)
    }

    /// Time before missing versions and sizes are queried again; doubles with each query that did not return them.
    pub(crate) fn facts_retry_delay(&self, key: &EtcdKey) -> Duration {
        let times = self.with_cluster(key, |cluster| cluster.incomplete_queries);
        let pause = intervals::MISSING_FACTS_RETRY.saturating_mul(1 << times.min(16));
        pause.min(intervals::MEMBER_FACTS_REFRESH)
    }

    /// A query is due because versions are still missing.
    pub(crate) fn record_missing_facts(&self, key: &EtcdKey) {
        self.with_cluster(key, |cluster| {
            cluster.incomplete_queries = cluster.incomplete_queries.saturating_add(1);
        });
    }

    pub(crate) fn clear_missing_facts(&self, key: &EtcdKey) {
        self.with_cluster(key, |cluster| cluster.incomplete_queries = 0);
    }

    /// Records that an object has this state, so that the next reconcile does not apply it again.
    pub(crate) fn record_applied(&self, key: &EtcdKey, object: String, state: String) {
        self.with_cluster(key, |cluster| {
            cluster.made_progress = true;
            cluster.applied.insert(object, state);
        });
    }

    pub(crate) fn is_applied(&self, key: &EtcdKey, object: &str, state: &str) -> bool {
        self.with_cluster(key, |cluster| {
            let known = cluster.applied.get(object);
            known.is_some_and(|known| known == state)
        })
    }

    /// A pod or PVC with this uid was deleted, even if the caches do not show it yet.
    pub(crate) fn record_deleted(&self, key: &EtcdKey, uid: &str) {
        self.with_cluster(key, |cluster| cluster.deleted.insert(uid.to_owned()));
    }

    /// Adds this process's own writes to the observation. Watches lag, and a deleted pod that still looks running would
    /// allow a second disruption.
    pub(crate) fn overlay_own_writes(&self, key: &EtcdKey, observed: &mut Observation) {
        self.with_cluster(key, |cluster| {
            let pods = observed.pods.values_mut();
            let pods = pods.map(|pod| (pod.uid.as_str(), &mut pod.is_deleting));
            let pvcs = observed.pvcs.values_mut();
            let pvcs = pvcs.map(|pvc| (pvc.uid.as_str(), &mut pvc.is_deleting));
            let mut still = BTreeSet::new();
            for (uid, is_deleting) in pods.chain(pvcs) {
                if let Some(uid) = cluster.deleted.take(uid) {
                    *is_deleting = true;
                    still.insert(uid);
                }
            }
            // Uids that are not observed any more are dropped.
            cluster.deleted = still;
            let (known, lease) = (cluster.full_snapshot, observed.full_snapshot.as_mut());
            match known.zip(lease) {
                Some((known, lease)) if lease.revision == known.lease_revision => {
                    lease.revision = lease.revision.max(Some(known.revision));
                }
                // The cached Lease has changed: it is authoritative again.
                Some(_) => cluster.full_snapshot = None,
                None => {}
            }
        });
    }

    /// A full snapshot of this revision is stored, observed over a Lease of revision `before`. Until the caches have the Lease at
    /// another revision, deltas up to this one are not compacted again.
    pub(crate) fn record_full_snapshot(
        &self,
        key: &EtcdKey,
        lease_revision: Option<i64>,
        revision: i64,
    ) {
        self.with_cluster(key, |cluster| {
            let known = cluster.full_snapshot;
            // `before` may be the overlaid revision; the cached Lease is then still at the one recorded earlier.
            let corrected = known.filter(|known| Some(known.revision) == lease_revision);
            let lease_revision = corrected.map_or(lease_revision, |known| known.lease_revision);
            cluster.full_snapshot = Some(PendingFullSnapshot {
                lease_revision,
                revision,
            });
        });
    }

    /// State of the full snapshot that replaces a compaction.
    pub(crate) fn set_fallback(&self, key: &EtcdKey, state: FallbackSnapshot) {
        self.with_cluster(key, |cluster| cluster.fallback = state);
    }

    pub(crate) fn fallback(&self, key: &EtcdKey) -> FallbackSnapshot {
        self.with_cluster(key, |cluster| cluster.fallback.clone())
    }

    /// Drops an outcome after it was published, so that it is reported once.
    pub(crate) fn clear_published_fallback(&self, key: &EtcdKey, state: &FallbackSnapshot) {
        self.with_cluster(key, |cluster| {
            if *state != FallbackSnapshot::Running && cluster.fallback == *state {
                cluster.fallback = FallbackSnapshot::None;
            }
        });
    }

    /// Records a read of the log of a restore, also a failed one.
    pub(crate) fn record_log_read(&self, key: &EtcdKey, log: LogRead) {
        self.with_cluster(key, |cluster| cluster.log_read = Some(log));
    }

    pub(crate) fn last_log_read(&self, key: &EtcdKey) -> Option<LogRead> {
        self.with_cluster(key, |cluster| cluster.log_read.clone())
    }

    /// Access to the coordination document of a cluster. Kept between reconciles, because it measures how long a lock has
    /// been unchanged. An Etcd that was deleted and recreated (another uid) gets a new one.
    pub(crate) fn get_or_create_coordinator(
        &self,
        (key, uid): (&EtcdKey, &str),
        make: impl FnOnce() -> Arc<Coordinator>,
    ) -> Arc<Coordinator> {
        self.with_cluster(key, |cluster| match &cluster.coordinator {
            Some((owner_uid, known)) if owner_uid == uid => Arc::clone(known),
            _ => {
                let fresh = make();
                cluster.coordinator = Some((uid.to_owned(), Arc::clone(&fresh)));
                fresh
            }
        })
    }

    /// A status write has replaced the resource at this version.
    pub(crate) fn record_status_write(&self, key: &EtcdKey, version: Option<String>) {
        self.with_cluster(key, |cluster| cluster.status_base_version = version);
    }

    /// Whether our own status write has replaced this version, and the watch has not delivered the new one yet.
    pub(crate) fn is_stale(&self, key: &EtcdKey, version: Option<&str>) -> bool {
        self.with_cluster(key, |cluster| {
            version.is_some() && cluster.status_base_version.as_deref() == version
        })
    }

    pub(crate) fn remove_cluster(&self, key: &EtcdKey) {
        self.lock().clusters.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::tests::fixture::{ClusterFixture, noon, pvc};
    use crate::model::{Ordinal, SnapshotLease};

    #[test]
    fn deleted_object_counts_as_deleting_before_the_watch_reports_it() {
        let (local, key) = (
            LocalState::default(),
            ClusterFixture::healthy(3).desired.key(),
        );
        local.record_deleted(&key, "pod-2-old");
        local.record_deleted(&key, "claim-2");
        let mut observed = ClusterFixture::healthy(3).observed;
        local.overlay_own_writes(&key, &mut observed);
        let deleting = observed.pods.iter().filter(|(_, pod)| pod.is_deleting);
        let deleting: Vec<u32> = deleting.map(|(ordinal, _)| ordinal.0).collect();
        assert_eq!(deleting, [2]);
        assert!(observed.pvcs[&Ordinal(2)].is_deleting);

        let mut replaced = ClusterFixture::healthy(3).with_updated_pod(2).observed;
        let mut fresh = pvc(2);
        fresh.uid = "another".to_owned();
        replaced.pvcs.insert(Ordinal(2), fresh);
        let before = replaced.clone();
        local.overlay_own_writes(&key, &mut replaced);
        assert_eq!(replaced, before, "the replacements stay");
        local.overlay_own_writes(&key, &mut observed);
        assert!(local.lock().clusters[&key].deleted.is_empty());
    }

    #[test]
    fn refused_expansion_is_retried_later() {
        let (local, key) = (
            LocalState::default(),
            ClusterFixture::healthy(3).desired.key(),
        );
        let retry = jiff::SignedDuration::try_from(intervals::EXPANSION_RETRY).unwrap();
        local.record_expansion_refused(&key, 20, "quota exceeded".to_owned(), noon());
        let refused = |bytes, now| local.expansion_refusal(&key, bytes, now).is_some();
        assert!(refused(20, noon()));
        assert!(!refused(30, noon()), "another size was not tried");
        assert!(refused(20, noon() + retry / 2));
        assert!(!refused(20, noon() + retry));
    }

    #[test]
    fn reconciles_that_make_progress_are_not_slowed_down() {
        let (local, key) = (
            LocalState::default(),
            ClusterFixture::healthy(3).desired.key(),
        );
        let failed = || local.record_failure(&key);
        assert_eq!([failed(), failed()], [1, 2]);
        local.record_applied(&key, "Role/x".to_owned(), "1".to_owned());
        assert_eq!([failed(), failed()], [1, 2]);
    }

    #[test]
    fn missing_facts_are_queried_with_growing_delay() {
        let (local, key) = (
            LocalState::default(),
            ClusterFixture::healthy(3).desired.key(),
        );
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pauses.push(local.facts_retry_delay(&key).as_secs());
            local.record_missing_facts(&key);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        local.clear_missing_facts(&key);
        assert_eq!(
            local.facts_retry_delay(&key),
            intervals::MISSING_FACTS_RETRY
        );
    }

    #[test]
    fn written_resource_is_stale_until_the_watch_returns_it() {
        let (local, key) = (
            LocalState::default(),
            ClusterFixture::healthy(3).desired.key(),
        );
        assert!(!local.is_stale(&key, None));
        local.record_status_write(&key, Some("7".to_owned()));
        assert!(local.is_stale(&key, Some("7")));
        assert!(!local.is_stale(&key, Some("8")));
    }

    #[test]
    fn full_snapshot_counts_until_its_lease_is_observed() {
        let (local, key) = (
            LocalState::default(),
            ClusterFixture::healthy(3).desired.key(),
        );
        let revision_with_lease = |revision: i64| {
            let mut observed = ClusterFixture::healthy(3).observed;
            observed.full_snapshot = Some(SnapshotLease {
                revision: Some(revision),
                ..SnapshotLease::default()
            });
            local.overlay_own_writes(&key, &mut observed);
            observed.full_snapshot.unwrap().revision
        };
        local.record_full_snapshot(&key, Some(100), 120);
        assert_eq!(
            revision_with_lease(100),
            Some(120),
            "the cached Lease is outdated"
        );
        local.record_full_snapshot(&key, Some(120), 130);
        assert_eq!(
            revision_with_lease(100),
            Some(130),
            "also after two snapshots"
        );
        assert_eq!(revision_with_lease(125), Some(125), "the Lease has arrived");
        assert_eq!(
            revision_with_lease(100),
            Some(100),
            "a restore lowers the revision"
        );
    }

    #[test]
    fn fallback_outcome_is_kept_until_it_is_published() {
        let (local, key) = (
            LocalState::default(),
            ClusterFixture::healthy(3).desired.key(),
        );
        local.set_fallback(&key, FallbackSnapshot::Taken);
        assert_eq!(local.fallback(&key), FallbackSnapshot::Taken);
        assert_eq!(local.fallback(&key), FallbackSnapshot::Taken);
        local.clear_published_fallback(&key, &FallbackSnapshot::Taken);
        assert_eq!(local.fallback(&key), FallbackSnapshot::None);
        local.set_fallback(&key, FallbackSnapshot::Running);
        local.clear_published_fallback(&key, &FallbackSnapshot::Running);
        assert_eq!(local.fallback(&key), FallbackSnapshot::Running);
    }

    #[test]
    fn deleted_cluster_leaves_no_local_state() {
        let (local, key) = (
            LocalState::default(),
            ClusterFixture::healthy(3).desired.key(),
        );
        local.record_applied(&key, "Role/x".to_owned(), "1".to_owned());
        local.record_failure(&key);
        local.remove_cluster(&key);
        assert!(local.lock().clusters.is_empty());
    }
}
