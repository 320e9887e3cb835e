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
use mainstay_manifests::Settings;
use tokio_util::task::TaskTracker;

use crate::caches::{Guarded, Stores};
use crate::cadence;
use crate::decide::Policy;
use crate::insight::Insight;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::observe::{FallBack, LogRead, Observation, SnapshotRequest};
use crate::status::Thresholds;
use crate::turns::Turns;
use crate::validate::Wanted;

/// What every pass shares.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What is watched.
    pub stores: Stores,
    /// How objects are rendered.
    pub settings: Settings,
    /// The operator's numbers.
    pub policy: Policy,
    /// When silence of a member means something.
    pub thresholds: Thresholds,
    /// Whether this process may write.
    pub leadership: Leadership,
    /// Tells people.
    pub recorder: Recorder,
    /// What is measured.
    pub metrics: Metrics,
    /// What is remembered.
    pub memory: Memory,
    /// Requests that take longer than a pass.
    pub tasks: TaskTracker,
    /// Asks for another pass.
    pub poke: Poke,
    /// Passes so far.
    pub runs: AtomicU64,
    /// Who may write now.
    pub turns: Turns,
    /// How far this process is.
    pub insight: Insight,
}

impl Context {
    /// A name for a pass that no other has, in this process or another.
    pub fn next_run_id(&self) -> String {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
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
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl Wanted {
    /// Which cluster this is about.
    pub fn key(&self) -> Key {
        Key {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// Asks for another pass over one cluster.
#[derive(Clone, Debug)]
pub struct Poke(pub mpsc::UnboundedSender<ObjectRef<Guarded>>);

impl Poke {
    /// Of this cluster. Nobody listens when the process is stopping.
    pub fn etcd(&self, key: &Key) {
        self.0
            .unbounded_send(ObjectRef::new(&key.name).within(&key.namespace))
            .ok();
    }
}

/// What is remembered between passes. Losing it costs a question or an idle write, never a mistake.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Remembered>>);

#[derive(Debug, Default)]
struct Remembered {
    clusters: HashMap<Key, Cluster>,
}

/// What is remembered of one cluster.
#[derive(Clone, Debug, Default)]
struct Cluster {
    failures: u32,
    got_further: bool,
    settled: HashMap<String, String>,
    deleted: BTreeSet<String>,
    snapshot: SnapshotRequest,
    expansion_refused: Option<Refused>,
    asked: Option<Timestamp>,
    asked_in_vain: u32,
    /// Of the resource with this uid.
    coordinator: Option<(String, Arc<Coordinator>)>,
    fall_back: FallBack,
    full_snapshot: Option<FullSnapshot>,
    log: Option<LogRead>,
    told_from: Option<String>,
}

/// A full snapshot whose Lease the caches may not have at its new revision yet.
#[derive(Clone, Copy, Debug)]
struct FullSnapshot {
    /// What the cached Lease said when the snapshot was stored.
    before: Option<i64>,
    revision: i64,
}

/// An expansion of volumes that was refused.
#[derive(Clone, Debug)]
struct Refused {
    bytes: u64,
    why: String,
    at: Timestamp,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, key: &Key, change: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut remembered = self.lock();
        change(remembered.clusters.entry(key.clone()).or_default())
    }

    /// A pass failed: how often now, in a row. One that got further than the one before begins a new row.
    pub fn failed(&self, key: &Key) -> u32 {
        self.with(key, |cluster| {
            let got_further = std::mem::take(&mut cluster.got_further);
            let before = if got_further { 0 } else { cluster.failures };
            cluster.failures = before.saturating_add(1);
            cluster.failures
        })
    }

    /// A pass went well.
    pub fn succeeded(&self, key: &Key) {
        self.with(key, |cluster| cluster.failures = 0);
    }

    /// What became of the snapshot that was asked for.
    pub fn snapshot(&self, key: &Key, state: SnapshotRequest) {
        self.with(key, |cluster| cluster.snapshot = state);
    }

    /// What is known of it.
    pub fn snapshot_state(&self, key: &Key) -> SnapshotRequest {
        self.with(key, |cluster| cluster.snapshot.clone())
    }

    /// Volumes of this size cannot be had.
    pub fn refuse_expansion(&self, key: &Key, bytes: u64, why: String, at: Timestamp) {
        self.with(key, |cluster| {
            cluster.expansion_refused = Some(Refused { bytes, why, at });
        });
    }

    /// Why volumes of this size cannot be had, if that was tried lately: a quota or a storage class may have changed since.
    pub fn expansion_refused(&self, key: &Key, bytes: u64, now: Timestamp) -> Option<String> {
        self.with(key, |cluster| {
            let refused = cluster.expansion_refused.as_ref();
            let is_lately = |at| now.duration_since(at).unsigned_abs() < cadence::EXPANSION_RETRY;
            refused
                .filter(|refused| refused.bytes == bytes && is_lately(refused.at))
                .map(|refused| refused.why.clone())
        })
    }

    /// etcd was asked.
    pub fn asked(&self, key: &Key, at: Timestamp) {
        self.with(key, |cluster| cluster.asked = Some(at));
    }

    /// When etcd was last asked.
    pub fn last_asked(&self, key: &Key) -> Option<Timestamp> {
        self.with(key, |cluster| cluster.asked)
    }

    /// How long to wait before facts that nobody told yet are asked for again.
    pub fn patience_for_facts(&self, key: &Key) -> Duration {
        let times = self.with(key, |cluster| cluster.asked_in_vain);
        let pause = cadence::MISSING_FACTS.saturating_mul(1 << times.min(16));
        pause.min(cadence::MEMBER_FACTS)
    }

    /// Facts are missing although they were asked for.
    pub fn facts_are_missing(&self, key: &Key) {
        self.with(key, |cluster| {
            cluster.asked_in_vain = cluster.asked_in_vain.saturating_add(1);
        });
    }

    /// Nothing is missing.
    pub fn facts_are_known(&self, key: &Key) {
        self.with(key, |cluster| cluster.asked_in_vain = 0);
    }

    /// Applying this to an object at that version changes nothing.
    pub fn settle(&self, key: &Key, object: String, state: String) {
        self.with(key, |cluster| {
            cluster.got_further = true;
            cluster.settled.insert(object, state);
        });
    }

    /// Whether that is known.
    pub fn is_settled(&self, key: &Key, object: &str, state: &str) -> bool {
        self.with(key, |cluster| {
            let known = cluster.settled.get(object);
            known.is_some_and(|known| known == state)
        })
    }

    /// A pod or a claim of this uid was deleted, whatever the stores say yet.
    pub fn deleted(&self, key: &Key, uid: &str) {
        self.with(key, |cluster| cluster.deleted.insert(uid.to_owned()));
    }

    /// Corrects what was seen by what was done: a watch may be behind, and a pod that goes must not be taken for one that
    /// stays. What is not seen any more is forgotten.
    pub fn correct(&self, key: &Key, seen: &mut Observation) {
        self.with(key, |cluster| {
            let pods = seen.pods.values_mut();
            let pods = pods.map(|pod| (pod.uid.as_str(), &mut pod.is_deleting));
            let claims = seen.claims.values_mut();
            let claims = claims.map(|claim| (claim.uid.as_str(), &mut claim.is_deleting));
            let mut still = BTreeSet::new();
            for (uid, is_deleting) in pods.chain(claims) {
                if let Some(uid) = cluster.deleted.take(uid) {
                    *is_deleting = true;
                    still.insert(uid);
                }
            }
            cluster.deleted = still;
            let (known, lease) = (cluster.full_snapshot, seen.full_snapshot.as_mut());
            match known.zip(lease) {
                Some((known, lease)) if lease.revision == known.before => {
                    lease.revision = lease.revision.max(Some(known.revision));
                }
                Some(_) => cluster.full_snapshot = None,
                None => {}
            }
        });
    }

    /// A full snapshot of this revision is stored, observed over a Lease of revision `before`. Until the caches have the Lease at
    /// another revision, deltas up to this one are not compacted again.
    pub fn full_snapshot(&self, key: &Key, before: Option<i64>, revision: i64) {
        self.with(key, |cluster| {
            let known = cluster.full_snapshot;
            let corrected = known.filter(|known| Some(known.revision) == before);
            let before = corrected.map_or(before, |known| known.before);
            cluster.full_snapshot = Some(FullSnapshot { before, revision });
        });
    }

    /// What became of the full snapshot that was asked for in place of a compaction.
    pub fn fall_back(&self, key: &Key, state: FallBack) {
        self.with(key, |cluster| cluster.fall_back = state);
    }

    /// What is known of it.
    pub fn fall_back_state(&self, key: &Key) -> FallBack {
        self.with(key, |cluster| cluster.fall_back.clone())
    }

    /// This outcome of it was published, which happens once. One that was not published is kept for the next reconcile.
    pub fn fall_back_was_published(&self, key: &Key, state: &FallBack) {
        self.with(key, |cluster| {
            if *state != FallBack::Running && cluster.fall_back == *state {
                cluster.fall_back = FallBack::None;
            }
        });
    }

    /// The log of a restore was read, or that was tried.
    pub fn log_was_read(&self, key: &Key, log: LogRead) {
        self.with(key, |cluster| cluster.log = Some(log));
    }

    /// What is known of the log of a restore.
    pub fn log(&self, key: &Key) -> Option<LogRead> {
        self.with(key, |cluster| cluster.log.clone())
    }

    /// Access to the coordination document of a cluster. It remembers how long it has seen a lock unchanged. That of a
    /// resource that was deleted and made again is another one, with another owner.
    pub fn coordinator(
        &self,
        (key, uid): (&Key, &str),
        make: impl FnOnce() -> Arc<Coordinator>,
    ) -> Arc<Coordinator> {
        self.with(key, |cluster| match &cluster.coordinator {
            Some((of, known)) if of == uid => Arc::clone(known),
            _ => {
                let fresh = make();
                cluster.coordinator = Some((uid.to_owned(), Arc::clone(&fresh)));
                fresh
            }
        })
    }

    /// A status was written over the resource at this version, and has changed it.
    pub fn told(&self, key: &Key, version: Option<String>) {
        self.with(key, |cluster| cluster.told_from = version);
    }

    /// Whether a resource at this version is not what it is any more: what was told about it is on its way.
    pub fn is_outdated(&self, key: &Key, version: Option<&str>) -> bool {
        self.with(key, |cluster| {
            version.is_some() && cluster.told_from.as_deref() == version
        })
    }

    /// A cluster is gone.
    pub fn forget(&self, key: &Key) {
        self.lock().clusters.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::tests::fixture::{Scene, claim, noon};
    use crate::observe::{Ordinal, SnapshotLease};

    #[test]
    fn what_was_deleted_goes_even_if_the_watch_does_not_know_yet() {
        let (memory, key) = (Memory::default(), Scene::whole(3).wanted.key());
        memory.deleted(&key, "pod-2-old");
        memory.deleted(&key, "claim-2");
        let mut seen = Scene::whole(3).seen;
        memory.correct(&key, &mut seen);
        let going = seen.pods.iter().filter(|(_, pod)| pod.is_deleting);
        let going: Vec<u32> = going.map(|(ordinal, _)| ordinal.0).collect();
        assert_eq!(going, [2]);
        assert!(seen.claims[&Ordinal(2)].is_deleting);

        let mut replaced = Scene::whole(3).updated(2).seen;
        let mut fresh = claim(2);
        fresh.uid = "another".to_owned();
        replaced.claims.insert(Ordinal(2), fresh);
        let before = replaced.clone();
        memory.correct(&key, &mut replaced);
        assert_eq!(replaced, before, "what came in its place stays");
        memory.correct(&key, &mut seen);
        assert!(memory.lock().clusters[&key].deleted.is_empty());
    }

    #[test]
    fn an_expansion_that_was_refused_is_tried_again_later() {
        let (memory, key) = (Memory::default(), Scene::whole(3).wanted.key());
        let retry = jiff::SignedDuration::try_from(cadence::EXPANSION_RETRY).unwrap();
        memory.refuse_expansion(&key, 20, "the quota is used up".to_owned(), noon());
        let refused = |bytes, now| memory.expansion_refused(&key, bytes, now).is_some();
        assert!(refused(20, noon()));
        assert!(!refused(30, noon()), "another size was not tried");
        assert!(refused(20, noon() + retry / 2));
        assert!(!refused(20, noon() + retry));
    }

    #[test]
    fn passes_that_get_further_each_time_are_not_slowed_down() {
        let (memory, key) = (Memory::default(), Scene::whole(3).wanted.key());
        let failed = || memory.failed(&key);
        assert_eq!([failed(), failed()], [1, 2]);
        memory.settle(&key, "Role/x".to_owned(), "1".to_owned());
        assert_eq!([failed(), failed()], [1, 2]);
    }

    #[test]
    fn facts_that_stay_away_are_asked_for_less_and_less() {
        let (memory, key) = (Memory::default(), Scene::whole(3).wanted.key());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pauses.push(memory.patience_for_facts(&key).as_secs());
            memory.facts_are_missing(&key);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        memory.facts_are_known(&key);
        assert_eq!(memory.patience_for_facts(&key), cadence::MISSING_FACTS);
    }

    #[test]
    fn a_resource_that_was_written_to_is_outdated_until_it_comes_back() {
        let (memory, key) = (Memory::default(), Scene::whole(3).wanted.key());
        assert!(!memory.is_outdated(&key, None));
        memory.told(&key, Some("7".to_owned()));
        assert!(memory.is_outdated(&key, Some("7")));
        assert!(!memory.is_outdated(&key, Some("8")));
    }

    #[test]
    fn a_full_snapshot_counts_before_its_lease_is_seen_and_not_after() {
        let (memory, key) = (Memory::default(), Scene::whole(3).wanted.key());
        let seen_as = |revision: i64| {
            let mut seen = Scene::whole(3).seen;
            seen.full_snapshot = Some(SnapshotLease {
                revision: Some(revision),
                ..SnapshotLease::default()
            });
            memory.correct(&key, &mut seen);
            seen.full_snapshot.unwrap().revision
        };
        memory.full_snapshot(&key, Some(100), 120);
        assert_eq!(seen_as(100), Some(120), "the Lease is on its way");
        memory.full_snapshot(&key, Some(120), 130);
        assert_eq!(seen_as(100), Some(130), "so are two");
        assert_eq!(seen_as(125), Some(125), "the Lease is there");
        assert_eq!(seen_as(100), Some(100), "a restore goes back");
    }

    #[test]
    fn an_outcome_is_kept_until_it_is_published() {
        let (memory, key) = (Memory::default(), Scene::whole(3).wanted.key());
        memory.fall_back(&key, FallBack::Taken);
        assert_eq!(memory.fall_back_state(&key), FallBack::Taken);
        assert_eq!(memory.fall_back_state(&key), FallBack::Taken);
        memory.fall_back_was_published(&key, &FallBack::Taken);
        assert_eq!(memory.fall_back_state(&key), FallBack::None);
        memory.fall_back(&key, FallBack::Running);
        memory.fall_back_was_published(&key, &FallBack::Running);
        assert_eq!(memory.fall_back_state(&key), FallBack::Running);
    }

    #[test]
    fn nothing_is_kept_of_a_cluster_that_is_gone() {
        let (memory, key) = (Memory::default(), Scene::whole(3).wanted.key());
        memory.settle(&key, "Role/x".to_owned(), "1".to_owned());
        memory.failed(&key);
        memory.forget(&key);
        assert!(memory.lock().clusters.is_empty());
    }
}
