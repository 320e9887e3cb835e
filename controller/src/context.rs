//! What every pass shares: connections, stores, settings, and the little that is remembered between passes.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::ObjectRef;
use mainstay_coordination::Coordinator;
use mainstay_manifests::OperatorSettings;
use tokio_util::task::TaskTracker;

use crate::caches::{LazyEtcd, Stores};
use crate::cadence;
use crate::decide::ReconcilePolicy;
use crate::insight::ReconcileProbe;
use crate::leader::Leadership;
use crate::metrics::ControllerMetrics;
use crate::observe::{FallbackSnapshot, LogRead, Observation, SnapshotRequest};
use crate::status::Thresholds;
use crate::turns::WriteScheduler;
use crate::validate::DesiredState;

/// What every pass shares.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What is watched.
    pub stores: Stores,
    /// How objects are rendered.
    pub settings: OperatorSettings,
    /// The operator's numbers.
    pub policy: ReconcilePolicy,
    /// When silence of a member means something.
    pub thresholds: Thresholds,
    /// Whether this process may write.
    pub leadership: Leadership,
    /// Tells people.
    pub recorder: Recorder,
    /// What is measured.
    pub metrics: ControllerMetrics,
    /// What is remembered.
    pub local: LocalState,
    /// Requests that take longer than a pass.
    pub background_tasks: TaskTracker,
    /// Asks for another pass.
    pub trigger: ReconcileTrigger,
    /// Passes so far.
    pub run_counter: AtomicU64,
    /// Who may write now.
    pub write_scheduler: WriteScheduler,
    /// How far this process is.
    pub probe: ReconcileProbe,
}

impl Context {
    /// A name for a pass that no other has, in this process or another.
    pub fn next_run_id(&self) -> String {
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

/// Which cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EtcdKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for EtcdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl DesiredState {
    /// Which cluster this is about.
    pub fn key(&self) -> EtcdKey {
        EtcdKey {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// Asks for another pass over one cluster.
#[derive(Clone, Debug)]
pub struct ReconcileTrigger(pub mpsc::UnboundedSender<ObjectRef<LazyEtcd>>);

impl ReconcileTrigger {
    /// Of this cluster. Nobody listens when the process is stopping.
    pub fn request(&self, key: &EtcdKey) {
        self.0
            .unbounded_send(ObjectRef::new(&key.name).within(&key.namespace))
            .ok();
    }
}

/// What is remembered between passes. Losing it costs a question or an idle write, never a mistake.
#[derive(Clone, Debug, Default)]
pub struct LocalState(Arc<Mutex<LocalStateInner>>);

#[derive(Debug, Default)]
struct LocalStateInner {
    clusters: HashMap<EtcdKey, ClusterLocalState>,
}

/// What is remembered of one cluster.
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
    /// Of the resource with this uid.
    coordinator: Option<(String, Arc<Coordinator>)>,
    fallback: FallbackSnapshot,
    full_snapshot: Option<PendingFullSnapshot>,
    log_read: Option<LogRead>,
    status_base_version: Option<String>,
}

/// A full snapshot whose Lease the caches may not have at its new revision yet.
#[derive(Clone, Copy, Debug)]
struct PendingFullSnapshot {
    /// What the cached Lease said when the snapshot was stored.
    lease_revision: Option<i64>,
    revision: i64,
}

/// An expansion of volumes that was refused.
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

    fn with_cluster<T>(&self, key: &EtcdKey, change: impl FnOnce(&mut ClusterLocalState) -> T) -> T {
        let mut remembered = self.lock();
        change(remembered.clusters.entry(key.clone()).or_default())
    }

    /// A pass failed: how often now, in a row. One that got further than the one before begins a new row.
    pub fn record_failure(&self, key: &EtcdKey) -> u32 {
        self.with_cluster(key, |cluster| {
            let got_further = std::mem::take(&mut cluster.made_progress);
            let before = if got_further { 0 } else { cluster.failures };
            cluster.failures = before.saturating_add(1);
            cluster.failures
        })
    }

    /// A pass went well.
    pub fn record_success(&self, key: &EtcdKey) {
        self.with_cluster(key, |cluster| cluster.failures = 0);
    }

    /// What became of the snapshot that was asked for.
    pub fn set_snapshot_request(&self, key: &EtcdKey, state: SnapshotRequest) {
        self.with_cluster(key, |cluster| cluster.snapshot_request = state);
    }

    /// What is known of it.
    pub fn snapshot_request(&self, key: &EtcdKey) -> SnapshotRequest {
        self.with_cluster(key, |cluster| cluster.snapshot_request.clone())
    }

    /// Volumes of this size cannot be had.
    pub fn record_expansion_refused(&self, key: &EtcdKey, bytes: u64, why: String, at: Timestamp) {
        self.with_cluster(key, |cluster| {
            cluster.expansion_refused = Some(RefusedExpansion { bytes, reason: why, at });
        });
    }

    /// Why volumes of this size cannot be had, if that was tried lately: a quota or a storage class may have changed since.
    pub fn expansion_refusal(&self, key: &EtcdKey, bytes: u64, now: Timestamp) -> Option<String> {
        self.with_cluster(key, |cluster| {
            let refused = cluster.expansion_refused.as_ref();
            let is_lately = |at| now.duration_since(at).unsigned_abs() < cadence::EXPANSION_RETRY;
            refused
                .filter(|refused| refused.bytes == bytes && is_lately(refused.at))
                .map(|refused| refused.reason.clone())
        })
    }

    /// etcd was asked.
    pub fn record_query(&self, key: &EtcdKey, at: Timestamp) {
        self.with_cluster(key, |cluster| cluster.queried_at = Some(at));
    }

    /// When etcd was last asked.
    pub fn last_query(&self, key: &EtcdKey) -> Option<Timestamp> {
        self.with_cluster(key, |cluster| cluster.queried_at)
    }

    /// How long to wait before facts that nobody told yet are asked for again.
    pub fn facts_retry_delay(&self, key: &EtcdKey) -> Duration {
        let times = self.with_cluster(key, |cluster| cluster.incomplete_queries);
        let pause = cadence::MISSING_FACTS_RETRY.saturating_mul(1 << times.min(16));
        pause.min(cadence::MEMBER_FACTS_REFRESH)
    }

    /// Facts are missing although they were asked for.
    pub fn record_missing_facts(&self, key: &EtcdKey) {
        self.with_cluster(key, |cluster| {
            cluster.incomplete_queries = cluster.incomplete_queries.saturating_add(1);
        });
    }

    /// Nothing is missing.
    pub fn clear_missing_facts(&self, key: &EtcdKey) {
        self.with_cluster(key, |cluster| cluster.incomplete_queries = 0);
    }

    /// Applying this to an object at that version changes nothing.
    pub fn record_applied(&self, key: &EtcdKey, object: String, state: String) {
        self.with_cluster(key, |cluster| {
            cluster.made_progress = true;
            cluster.applied.insert(object, state);
        });
    }

    /// Whether that is known.
    pub fn is_applied(&self, key: &EtcdKey, object: &str, state: &str) -> bool {
        self.with_cluster(key, |cluster| {
            let known = cluster.applied.get(object);
            known.is_some_and(|known| known == state)
        })
    }

    /// A pod or a claim of this uid was deleted, whatever the stores say yet.
    pub fn record_deleted(&self, key: &EtcdKey, uid: &str) {
        self.with_cluster(key, |cluster| cluster.deleted.insert(uid.to_owned()));
    }

    /// Corrects what was seen by what was done: a watch may be behind, and a pod that goes must not be taken for one that
    /// stays. What is not seen any more is forgotten.
    pub fn overlay_own_writes(&self, key: &EtcdKey, observed: &mut Observation) {
        self.with_cluster(key, |cluster| {
            let pods = observed.pods.values_mut();
            let pods = pods.map(|pod| (pod.uid.as_str(), &mut pod.is_deleting));
            let claims = observed.pvcs.values_mut();
            let claims = claims.map(|claim| (claim.uid.as_str(), &mut claim.is_deleting));
            let mut still = BTreeSet::new();
            for (uid, is_deleting) in pods.chain(claims) {
                if let Some(uid) = cluster.deleted.take(uid) {
                    *is_deleting = true;
                    still.insert(uid);
                }
            }
            cluster.deleted = still;
            let (known, lease) = (cluster.full_snapshot, observed.full_snapshot.as_mut());
            match known.zip(lease) {
                Some((known, lease)) if lease.revision == known.lease_revision => {
                    lease.revision = lease.revision.max(Some(known.revision));
                }
                Some(_) => cluster.full_snapshot = None,
                None => {}
            }
        });
    }

    /// A full snapshot of this revision is stored, observed over a Lease of revision `before`. Until the caches have the Lease at
    /// another revision, deltas up to this one are not compacted again.
    pub fn record_full_snapshot(&self, key: &EtcdKey, before: Option<i64>, revision: i64) {
        self.with_cluster(key, |cluster| {
            let known = cluster.full_snapshot;
            let corrected = known.filter(|known| Some(known.revision) == before);
            let before = corrected.map_or(before, |known| known.lease_revision);
            cluster.full_snapshot = Some(PendingFullSnapshot { lease_revision: before, revision });
        });
    }

    /// What became of the full snapshot that was asked for in place of a compaction.
    pub fn set_fallback(&self, key: &EtcdKey, state: FallbackSnapshot) {
        self.with_cluster(key, |cluster| cluster.fallback = state);
    }

    /// What is known of it.
    pub fn fallback(&self, key: &EtcdKey) -> FallbackSnapshot {
        self.with_cluster(key, |cluster| cluster.fallback.clone())
    }

    /// This outcome of it was published, which happens once. One that was not published is kept for the next reconcile.
    pub fn clear_published_fallback(&self, key: &EtcdKey, state: &FallbackSnapshot) {
        self.with_cluster(key, |cluster| {
            if *state != FallbackSnapshot::Running && cluster.fallback == *state {
                cluster.fallback = FallbackSnapshot::None;
            }
        });
    }

    /// The log of a restore was read, or that was tried.
    pub fn record_log_read(&self, key: &EtcdKey, log: LogRead) {
        self.with_cluster(key, |cluster| cluster.log_read = Some(log));
    }

    /// What is known of the log of a restore.
    pub fn last_log_read(&self, key: &EtcdKey) -> Option<LogRead> {
        self.with_cluster(key, |cluster| cluster.log_read.clone())
    }

    /// Access to the coordination document of a cluster. It remembers how long it has seen a lock unchanged. That of a
    /// resource that was deleted and made again is another one, with another owner.
    pub fn get_or_create_coordinator(
        &self,
        (key, uid): (&EtcdKey, &str),
        make: impl FnOnce() -> Arc<Coordinator>,
    ) -> Arc<Coordinator> {
        self.with_cluster(key, |cluster| match &cluster.coordinator {
            Some((of, known)) if of == uid => Arc::clone(known),
            _ => {
                let fresh = make();
                cluster.coordinator = Some((uid.to_owned(), Arc::clone(&fresh)));
                fresh
            }
        })
    }

    /// A status was written over the resource at this version, and has changed it.
    pub fn record_status_write(&self, key: &EtcdKey, version: Option<String>) {
        self.with_cluster(key, |cluster| cluster.status_base_version = version);
    }

    /// Whether a resource at this version is not what it is any more: what was told about it is on its way.
    pub fn is_stale(&self, key: &EtcdKey, version: Option<&str>) -> bool {
        self.with_cluster(key, |cluster| {
            version.is_some() && cluster.status_base_version.as_deref() == version
        })
    }

    /// A cluster is gone.
    pub fn remove_cluster(&self, key: &EtcdKey) {
        self.lock().clusters.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::tests::fixture::{ClusterFixture, pvc, noon};
    use crate::observe::{Ordinal, SnapshotLease};

    #[test]
    fn what_was_deleted_goes_even_if_the_watch_does_not_know_yet() {
        let (memory, key) = (LocalState::default(), ClusterFixture::healthy(3).desired.key());
        memory.record_deleted(&key, "pod-2-old");
        memory.record_deleted(&key, "claim-2");
        let mut observed = ClusterFixture::healthy(3).observed;
        memory.overlay_own_writes(&key, &mut observed);
        let going = observed.pods.iter().filter(|(_, pod)| pod.is_deleting);
        let going: Vec<u32> = going.map(|(ordinal, _)| ordinal.0).collect();
        assert_eq!(going, [2]);
        assert!(observed.pvcs[&Ordinal(2)].is_deleting);

        let mut replaced = ClusterFixture::healthy(3).with_updated_pod(2).observed;
        let mut fresh = pvc(2);
        fresh.uid = "another".to_owned();
        replaced.pvcs.insert(Ordinal(2), fresh);
        let before = replaced.clone();
        memory.overlay_own_writes(&key, &mut replaced);
        assert_eq!(replaced, before, "what came in its place stays");
        memory.overlay_own_writes(&key, &mut observed);
        assert!(memory.lock().clusters[&key].deleted.is_empty());
    }

    #[test]
    fn an_expansion_that_was_refused_is_tried_again_later() {
        let (memory, key) = (LocalState::default(), ClusterFixture::healthy(3).desired.key());
        let retry = jiff::SignedDuration::try_from(cadence::EXPANSION_RETRY).unwrap();
        memory.record_expansion_refused(&key, 20, "the quota is used up".to_owned(), noon());
        let refused = |bytes, now| memory.expansion_refusal(&key, bytes, now).is_some();
        assert!(refused(20, noon()));
        assert!(!refused(30, noon()), "another size was not tried");
        assert!(refused(20, noon() + retry / 2));
        assert!(!refused(20, noon() + retry));
    }

    #[test]
    fn passes_that_get_further_each_time_are_not_slowed_down() {
        let (memory, key) = (LocalState::default(), ClusterFixture::healthy(3).desired.key());
        let failed = || memory.record_failure(&key);
        assert_eq!([failed(), failed()], [1, 2]);
        memory.record_applied(&key, "Role/x".to_owned(), "1".to_owned());
        assert_eq!([failed(), failed()], [1, 2]);
    }

    #[test]
    fn facts_that_stay_away_are_asked_for_less_and_less() {
        let (memory, key) = (LocalState::default(), ClusterFixture::healthy(3).desired.key());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pauses.push(memory.facts_retry_delay(&key).as_secs());
            memory.record_missing_facts(&key);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        memory.clear_missing_facts(&key);
        assert_eq!(memory.facts_retry_delay(&key), cadence::MISSING_FACTS_RETRY);
    }

    #[test]
    fn a_resource_that_was_written_to_is_outdated_until_it_comes_back() {
        let (memory, key) = (LocalState::default(), ClusterFixture::healthy(3).desired.key());
        assert!(!memory.is_stale(&key, None));
        memory.record_status_write(&key, Some("7".to_owned()));
        assert!(memory.is_stale(&key, Some("7")));
        assert!(!memory.is_stale(&key, Some("8")));
    }

    #[test]
    fn a_full_snapshot_counts_before_its_lease_is_seen_and_not_after() {
        let (memory, key) = (LocalState::default(), ClusterFixture::healthy(3).desired.key());
        let seen_as = |revision: i64| {
            let mut observed = ClusterFixture::healthy(3).observed;
            observed.full_snapshot = Some(SnapshotLease {
                revision: Some(revision),
                ..SnapshotLease::default()
            });
            memory.overlay_own_writes(&key, &mut observed);
            observed.full_snapshot.unwrap().revision
        };
        memory.record_full_snapshot(&key, Some(100), 120);
        assert_eq!(seen_as(100), Some(120), "the Lease is on its way");
        memory.record_full_snapshot(&key, Some(120), 130);
        assert_eq!(seen_as(100), Some(130), "so are two");
        assert_eq!(seen_as(125), Some(125), "the Lease is there");
        assert_eq!(seen_as(100), Some(100), "a restore goes back");
    }

    #[test]
    fn an_outcome_is_kept_until_it_is_published() {
        let (memory, key) = (LocalState::default(), ClusterFixture::healthy(3).desired.key());
        memory.set_fallback(&key, FallbackSnapshot::Taken);
        assert_eq!(memory.fallback(&key), FallbackSnapshot::Taken);
        assert_eq!(memory.fallback(&key), FallbackSnapshot::Taken);
        memory.clear_published_fallback(&key, &FallbackSnapshot::Taken);
        assert_eq!(memory.fallback(&key), FallbackSnapshot::None);
        memory.set_fallback(&key, FallbackSnapshot::Running);
        memory.clear_published_fallback(&key, &FallbackSnapshot::Running);
        assert_eq!(memory.fallback(&key), FallbackSnapshot::Running);
    }

    #[test]
    fn nothing_is_kept_of_a_cluster_that_is_gone() {
        let (memory, key) = (LocalState::default(), ClusterFixture::healthy(3).desired.key());
        memory.record_applied(&key, "Role/x".to_owned(), "1".to_owned());
        memory.record_failure(&key);
        memory.remove_cluster(&key);
        assert!(memory.lock().clusters.is_empty());
    }
}
