//! What is measured, and how it is told: one registry, rendered as Prometheus reads it.
//!
//! ```text
//! snapshotter, tail, election, leases, HTTP ──► Metrics ──► peer: etcdbr_*   ┐
//!                                                        ├─► own:  mainstay_*  ├─► render ─► /metrics
//! kernel, clock ─────────────────────── at the scrape ──► scraped             ┘
//! ```
//!
//! **Holds**: labels come from closed lists (`labels`), never from a text, an address or an object key; every
//! label set exists at zero before anything happened. The table in `docs/metrics.md` is made from the registry
//! by the test that compares the two.

mod duty;
mod labels;
mod own;
mod peer;
mod register;
mod scraped;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;
use mainstay_store::ErrorClass;
use prometheus::{Registry, TextEncoder};

use crate::state::{SidecarRole, StoredSnapshot};
use duty::SnapshotAges;
use own::MainstaySeries;
use peer::EtcdbrSeries;
use register::{Registrar, MetricDesc};
use scraped::ScrapedMetric;

pub use labels::{ALARM_KINDS, GarbageLabel, FAILURE_CLASSES, GapCause, LeaseLabel, OTHER_ROUTE, ROUTES};

/// Media type of what [`Metrics::render`] gives.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

const SNAPSHOT_AGE: MetricDesc = (
    "mainstay_snapshot_age_seconds",
    "Seconds since the last success of a kind, on the sidecar that is to take the snapshots; without a success, \
     since that is its duty. 0 where it is the duty of another.",
);

/// Everything this process measures. Clones share the values.
#[derive(Clone, Debug)]
pub struct SidecarMetrics {
    registry: Registry,
    etcdbr: EtcdbrSeries,
    mainstay: MainstaySeries,
    snapshot_ages: Arc<Mutex<SnapshotAges>>,
}

impl SidecarMetrics {
    /// All series, at zero.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let register = Registrar(&registry);
        let (peer, own) = (EtcdbrSeries::new(&register)?, MainstaySeries::new(&register)?);
        let duty = Arc::new(Mutex::new(SnapshotAges::new(Timestamp::now())));
        let shared = Arc::clone(&duty);
        register.register(ScrapedMetric::gauges(SNAPSHOT_AGE, "kind", move || {
            let duty = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Timestamp::now();
            let age = |kind| (labels::kind_label(kind), duty.age_seconds(kind, now));
            labels::SNAPSHOT_KINDS.map(age).to_vec()
        })?)?;
        scraped::register_process(&register)?;
        let metrics = Self {
            registry,
            etcdbr: peer,
            mainstay: own,
            snapshot_ages: duty,
        };
        metrics.set_role(SidecarRole::default());
        Ok(metrics)
    }

    /// All series as text. Reads a few small files of `/proc`.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// Snapshots and the store.
impl SidecarMetrics {
    /// A snapshot was stored, or given up, after `seconds`.
    pub fn record_snapshot(&self, kind: SnapshotKind, succeeded: bool, seconds: f64) {
        let labels = [labels::kind_label(kind), labels::outcome_label(succeeded)];
        let series = &self.etcdbr.snapshot_seconds;
        series.with_label_values(&labels).observe(seconds);
        if succeeded {
            self.record_success(kind, Timestamp::now());
        }
    }

    /// The last success of a kind was then: a snapshot found in the store, or a delta that had nothing to write.
    /// Never moves the age back.
    pub fn record_success(&self, kind: SnapshotKind, at: Timestamp) {
        self.update_snapshot_ages(|duty| duty.record_success(kind, at));
    }

    /// A snapshot is in the store; `raw_bytes` is what it was before compression.
    pub fn record_stored(&self, stored: &StoredSnapshot, raw_bytes: u64) {
        let label = [labels::kind_label(stored.name.kind)];
        let raw = self.mainstay.raw_bytes.with_label_values(&label);
        raw.inc_by(raw_bytes);
        let total = self.mainstay.stored_bytes.with_label_values(&label);
        total.inc_by(stored.size);
        self.set_latest(stored);
    }

    /// The newest snapshot of its kind is this one, whoever stored it.
    pub fn set_latest(&self, stored: &StoredSnapshot) {
        let label = [labels::kind_label(stored.name.kind)];
        let set = |series: &prometheus::IntGaugeVec, value| {
            series.with_label_values(&label).set(value);
        };
        set(&self.etcdbr.latest_revision, stored.name.last.0);
        set(&self.etcdbr.latest_timestamp, stored.name.created);
        set(&self.mainstay.latest_bytes, to_i64(stored.size));
    }

    /// Whether a snapshot of a kind is due.
    pub fn set_required(&self, kind: SnapshotKind, is_required: bool) {
        let series = &self.etcdbr.required;
        let label = [labels::kind_label(kind)];
        series.with_label_values(&label).set(is_required.into());
    }

    /// The snapshotter failed; `class` is a word of a closed list, see [`FAILURES`].
    pub fn count_failure(&self, class: &'static str) {
        self.etcdbr.failures.with_label_values(&[class]).inc();
    }

    /// The store refused, after retries.
    pub fn count_store_error(&self, class: ErrorClass) {
        let series = &self.mainstay.store_errors;
        series.with_label_values(&[class.name()]).inc();
    }

    /// Parts of a multipart upload were sent.
    pub fn count_upload_parts(&self, parts: usize) {
        self.mainstay.upload_parts.inc_by(parts as u64);
    }

    /// What the backup can restore, and what lies behind its newest full snapshot.
    pub fn set_restorable(
        &self,
        oldest: Option<Revision>,
        newest: Option<Revision>,
        deltas: usize,
        delta_revisions: i64,
    ) {
        self.mainstay.oldest_restorable.set(oldest.unwrap_or_default().0);
        self.mainstay.newest_restorable.set(newest.unwrap_or_default().0);
        let deltas = i64::try_from(deltas).unwrap_or(i64::MAX);
        self.etcdbr.latest_deltas.set(deltas);
        self.etcdbr.latest_delta_revisions.set(delta_revisions);
    }

    /// Objects that were read and found damaged.
    pub fn set_damaged_objects(&self, objects: usize) {
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        self.mainstay.damaged_objects.set(objects);
    }

    /// Garbage collection removed an object, or failed to.
    pub fn count_garbage_collected(&self, what: impl Into<GarbageLabel>, succeeded: bool) {
        let labels = [what.into().as_str(), labels::outcome_label(succeeded)];
        self.etcdbr.garbage_collected.with_label_values(&labels).inc();
    }
}

/// Election and capture.
impl SidecarMetrics {
    /// What this sidecar is now.
    pub fn set_role(&self, now: SidecarRole) {
        for standing in SidecarRole::ALL {
            let series = self.mainstay.role.with_label_values(&[standing.as_str()]);
            series.set((standing == now).into());
        }
        if now != SidecarRole::Leader {
            // Nothing is captured here any more.
            self.set_watch_lag(0, 0.0);
            self.set_buffer_bytes(0);
        }
        if matches!(now, SidecarRole::Follower | SidecarRole::Learner) {
            // Whoever leads reads the backup, and tells. While nobody does, the damage is still there.
            self.set_damaged_objects(0);
        }
        self.update_snapshot_ages(|duty| duty.set_role(now, Timestamp::now()));
    }

    /// It became that.
    pub fn record_role_change(&self, to: SidecarRole) {
        self.mainstay.transitions.with_label_values(&[to.as_str()]).inc();
        self.set_role(to);
    }

    /// How far the capture is behind etcd.
    pub fn set_watch_lag(&self, revisions: i64, seconds: f64) {
        self.mainstay.lag_revisions.set(revisions);
        self.mainstay.lag_seconds.set(seconds);
    }

    /// What is captured and not stored.
    pub fn set_buffer_bytes(&self, bytes: u64) {
        self.mainstay.buffer_bytes.set(to_i64(bytes));
    }

    /// Events are captured without the life of their lease.
    pub fn count_unknown_lease_ttls(&self, events: usize) {
        self.mainstay.unknown_lease_ttls.inc_by(events as u64);
    }

    /// Revisions are missing.
    pub fn count_gap(&self, cause: GapCause) {
        self.mainstay.gaps.with_label_values(&[cause.as_str()]).inc();
    }

    fn update_snapshot_ages(&self, change: impl FnOnce(&mut SnapshotAges)) {
        change(&mut self.snapshot_ages.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The cluster, and those who ask.
impl SidecarMetrics {
    /// A member was defragmented, or was not, after `seconds`.
    pub fn observe_defragmentation(&self, succeeded: bool, seconds: f64) {
        let series = &self.etcdbr.defragmentation_seconds;
        let label = [labels::outcome_label(succeeded)];
        series.with_label_values(&label).observe(seconds);
    }

    /// Whether the member of this sidecar is a learner.
    pub fn set_learner(&self, is_learner: bool) {
        self.etcdbr.is_learner.set(is_learner.into());
    }

    /// The member of this sidecar was promoted, or was not, after `seconds`.
    pub fn observe_promotion(&self, succeeded: bool, seconds: f64) {
        let series = &self.etcdbr.promotion_seconds;
        let label = [labels::outcome_label(succeeded)];
        series.with_label_values(&label).observe(seconds);
    }

    /// Whether etcd has an alarm; `kind` is a word of a closed list, see [`ALARMS`].
    pub fn set_alarm(&self, kind: &'static str, is_active: bool) {
        let series = &self.mainstay.alarm;
        series.with_label_values(&[kind]).set(is_active.into());
    }

    /// Members of the cluster.
    pub fn set_cluster_size(&self, members: usize) {
        let members = i64::try_from(members).unwrap_or(i64::MAX);
        self.etcdbr.cluster_size.set(members);
    }

    /// A Kubernetes lease was written, or was not.
    pub fn count_lease_update(&self, lease: LeaseLabel, succeeded: bool) {
        let labels = [lease.as_str(), labels::outcome_label(succeeded)];
        self.mainstay.lease_updates.with_label_values(&labels).inc();
    }

    /// A request was answered; `route` is one of [`ROUTES`].
    pub fn count_http_request(&self, route: &'static str, status: u16) {
        let labels = [route, labels::status_class(status)];
        self.mainstay.http_requests.with_label_values(&labels).inc();
    }

    /// A connection was closed because there are too many.
    pub fn count_refused_connection(&self) {
        self.mainstay.refused_connections.inc();
    }
}

/// A size as gauges keep it.
fn to_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
