//! Metrics of the sidecar: one registry, rendered in Prometheus' text format.
//!
//! ```text
//! snapshotter, tail, election, leases, HTTP ──► Metrics ──► peer: etcdbr_*   ┐
//!                                                        ├─► own:  mainstay_*  ├─► render ─► /metrics
//! kernel, clock ─────────────────────── at the scrape ──► scraped             ┘
//! ```
//!
//! **Invariants**: label values come from fixed lists (`labels`), never from an error text, an address or an object key;
//! every label set exists at zero from the start. A test generates the table in `docs/reference/metrics.md` from the registry and
//! compares the two.

mod etcdbr_series;
mod labels;
mod mainstay_series;
mod registrar;
mod scraped;
mod snapshot_ages;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use mainstay_archive::name::SnapshotKind;
use mainstay_ids::Revision;
use mainstay_store::ErrorClass;
use prometheus::{Registry, TextEncoder};

use crate::kubernetes::LeaseKind;
use crate::retention::FreezeReason;
use crate::state::{SidecarRole, StoredSnapshot};
use etcdbr_series::EtcdbrSeries;
use mainstay_series::MainstaySeries;
use registrar::{MetricDesc, Registrar};
use scraped::ScrapedMetric;
use snapshot_ages::SnapshotAges;

pub(crate) use labels::{GapCause, GarbageLabel, OTHER_ROUTE, ROUTES};

/// Media type of the output of [`SidecarMetrics::render`].
pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

const SNAPSHOT_AGE: MetricDesc = (
    "mainstay_snapshot_age_seconds",
    "Seconds since the last successful snapshot of a kind, on the sidecar that is responsible for snapshots; before \
     the first success, since it became responsible. 0 while another sidecar is responsible.",
);

/// All metrics of this process. Clones share the values.
#[derive(Clone, Debug)]
pub struct SidecarMetrics {
    registry: Registry,
    etcdbr: EtcdbrSeries,
    mainstay: MainstaySeries,
    snapshot_ages: Arc<Mutex<SnapshotAges>>,
}

impl SidecarMetrics {
    /// Registers all series, at zero.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let register = Registrar(&registry);
        let (etcdbr, mainstay) = (
            EtcdbrSeries::new(&register)?,
            MainstaySeries::new(&register)?,
        );
        let snapshot_ages = Arc::new(Mutex::new(SnapshotAges::new(Timestamp::now())));
        let shared = Arc::clone(&snapshot_ages);
        register.register(ScrapedMetric::gauges(SNAPSHOT_AGE, "kind", move || {
            let snapshot_ages = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Timestamp::now();
            let age = |kind| {
                (
                    labels::kind_label(kind),
                    snapshot_ages.age_seconds(kind, now),
                )
            };
            labels::SNAPSHOT_KINDS.map(age).to_vec()
        })?)?;
        scraped::register_process(&register)?;
        let metrics = Self {
            registry,
            etcdbr,
            mainstay,
            snapshot_ages,
        };
        metrics.set_role(SidecarRole::default());
        Ok(metrics)
    }

    /// Renders all series as text. Blocking: reads a few small files of `/proc`.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// Snapshots and the store.
impl SidecarMetrics {
    /// Records a snapshot that was stored, or failed, after `seconds`.
    pub(crate) fn record_snapshot(&self, kind: SnapshotKind, succeeded: bool, seconds: f64) {
        let labels = [labels::kind_label(kind), labels::outcome_label(succeeded)];
        let series = &self.etcdbr.snapshot_seconds;
        series.with_label_values(&labels).observe(seconds);
        if succeeded {
            self.record_success(kind, Timestamp::now());
        }
    }

    /// Records the time of the last success of a kind: a snapshot found in the store, or a delta run without events to store.
    /// An earlier time than the recorded one is ignored.
    pub(crate) fn record_success(&self, kind: SnapshotKind, at: Timestamp) {
        self.update_snapshot_ages(|duty| duty.record_success(kind, at));
    }

    /// Records a stored snapshot; `raw_bytes` is its size before compression.
    pub(crate) fn record_stored(&self, stored: &StoredSnapshot, raw_bytes: u64) {
        let label = [labels::kind_label(stored.name.kind)];
        let raw = self.mainstay.raw_bytes.with_label_values(&label);
        raw.inc_by(raw_bytes);
        let total = self.mainstay.stored_bytes.with_label_values(&label);
        total.inc_by(stored.size);
        self.set_latest(stored);
    }

    /// Records the latest snapshot of its kind, whichever sidecar stored it.
    pub(crate) fn set_latest(&self, stored: &StoredSnapshot) {
        let label = [labels::kind_label(stored.name.kind)];
        let set = |series: &prometheus::IntGaugeVec, value| {
            series.with_label_values(&label).set(value);
        };
        set(&self.etcdbr.latest_revision, stored.name.last.0);
        set(&self.etcdbr.latest_timestamp, stored.name.created);
        set(&self.mainstay.latest_bytes, to_i64(stored.size));
    }

    /// Records whether a snapshot of a kind is due.
    pub(crate) fn set_required(&self, kind: SnapshotKind, is_required: bool) {
        let series = &self.etcdbr.required;
        let label = [labels::kind_label(kind)];
        series.with_label_values(&label).set(is_required.into());
    }

    /// Counts a failure of the snapshotter; `class` is one of `labels::FAILURE_CLASSES`.
    pub(crate) fn count_failure(&self, class: &'static str) {
        self.etcdbr.failures.with_label_values(&[class]).inc();
    }

    /// Counts an operation of the store that failed after retries.
    pub(crate) fn count_store_error(&self, class: ErrorClass) {
        let series = &self.mainstay.store_errors;
        series.with_label_values(&[class.name()]).inc();
    }

    /// Counts uploaded parts of multipart uploads.
    pub(crate) fn count_upload_parts(&self, parts: usize) {
        self.mainstay.upload_parts.inc_by(parts as u64);
    }

    /// Records the restorable range, and the deltas based on the latest full snapshot.
    pub(crate) fn set_restorable(
        &self,
        oldest: Option<Revision>,
        newest: Option<Revision>,
        deltas: usize,
        delta_revisions: i64,
    ) {
        self.mainstay
            .oldest_restorable
            .set(oldest.unwrap_or_default().0);
        self.mainstay
            .newest_restorable
            .set(newest.unwrap_or_default().0);
        let deltas = i64::try_from(deltas).unwrap_or(i64::MAX);
        self.etcdbr.latest_deltas.set(deltas);
        self.etcdbr.latest_delta_revisions.set(delta_revisions);
    }

    /// Records the number of damaged objects found in the backup.
    pub(crate) fn set_damaged_objects(&self, objects: usize) {
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        self.mainstay.damaged_objects.set(objects);
    }

    /// Records why garbage collection deletes nothing; `None` when it works.
    pub(crate) fn set_retention_frozen(&self, reason: Option<FreezeReason>) {
        for one in FreezeReason::ALL {
            let series = &self.mainstay.retention_frozen;
            let gauge = series.with_label_values(&[one.as_str()]);
            gauge.set((reason == Some(one)).into());
        }
    }

    /// Counts an object that garbage collection deleted, or failed to delete.
    pub(crate) fn count_garbage_collected(&self, what: impl Into<GarbageLabel>, succeeded: bool) {
        let labels = [what.into().as_str(), labels::outcome_label(succeeded)];
        self.etcdbr
            .garbage_collected
            .with_label_values(&labels)
            .inc();
    }
}

/// Election and capture.
impl SidecarMetrics {
    /// Records the current role.
    pub(crate) fn set_role(&self, now: SidecarRole) {
        for standing in SidecarRole::ALL {
            let series = self.mainstay.role.with_label_values(&[standing.as_str()]);
            series.set((standing == now).into());
        }
        if now != SidecarRole::Leader {
            // Only the leader captures: a stale lag would keep an alert firing.
            self.set_watch_lag(0, 0.0);
            self.set_buffer_bytes(0);
        }
        if matches!(now, SidecarRole::Follower | SidecarRole::Learner) {
            // The leader checks the backup and reports damage. In role Unknown there may be no leader, so the value stays.
            self.set_damaged_objects(0);
            self.set_retention_frozen(None);
        }
        self.update_snapshot_ages(|duty| duty.set_role(now, Timestamp::now()));
    }

    /// Counts a change of the role.
    pub(crate) fn record_role_change(&self, to: SidecarRole) {
        self.mainstay
            .transitions
            .with_label_values(&[to.as_str()])
            .inc();
        self.set_role(to);
    }

    /// Records the lag of the capture behind etcd.
    pub(crate) fn set_watch_lag(&self, revisions: i64, seconds: f64) {
        self.mainstay.lag_revisions.set(revisions);
        self.mainstay.lag_seconds.set(seconds);
    }

    /// Records the size of events that are captured and not stored.
    pub(crate) fn set_buffer_bytes(&self, bytes: u64) {
        self.mainstay.buffer_bytes.set(to_i64(bytes));
    }

    /// Counts events that are captured without the TTL of their lease.
    pub(crate) fn count_unknown_lease_ttls(&self, events: usize) {
        self.mainstay.unknown_lease_ttls.inc_by(events as u64);
    }

    /// Counts a range of revisions that could not be captured.
    pub(crate) fn count_gap(&self, cause: GapCause) {
        self.mainstay
            .gaps
            .with_label_values(&[cause.as_str()])
            .inc();
    }

    fn update_snapshot_ages(&self, change: impl FnOnce(&mut SnapshotAges)) {
        change(
            &mut self
                .snapshot_ages
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

/// Cluster and HTTP.
impl SidecarMetrics {
    /// Records a defragmentation of a member that took `seconds`.
    pub(crate) fn observe_defragmentation(&self, succeeded: bool, seconds: f64) {
        let series = &self.etcdbr.defragmentation_seconds;
        let label = [labels::outcome_label(succeeded)];
        series.with_label_values(&label).observe(seconds);
    }

    /// Records whether this sidecar's member is a learner.
    pub(crate) fn set_learner(&self, is_learner: bool) {
        self.etcdbr.is_learner.set(is_learner.into());
    }

    /// Records a promotion of this sidecar's member that took `seconds`.
    pub(crate) fn observe_promotion(&self, succeeded: bool, seconds: f64) {
        let series = &self.etcdbr.promotion_seconds;
        let label = [labels::outcome_label(succeeded)];
        series.with_label_values(&label).observe(seconds);
    }

    /// Records whether etcd has an alarm; `kind` is one of `labels::ALARM_KINDS`.
    pub(crate) fn set_alarm(&self, kind: &'static str, is_active: bool) {
        let series = &self.mainstay.alarm;
        series.with_label_values(&[kind]).set(is_active.into());
    }

    /// Records the number of members.
    pub(crate) fn set_cluster_size(&self, members: usize) {
        let members = i64::try_from(members).unwrap_or(i64::MAX);
        self.etcdbr.cluster_size.set(members);
    }

    /// Counts a write of a Kubernetes Lease.
    pub(crate) fn count_lease_update(&self, lease: LeaseKind, succeeded: bool) {
        let labels = [lease.label(), labels::outcome_label(succeeded)];
        self.mainstay.lease_updates.with_label_values(&labels).inc();
    }

    /// Counts a response; `route` is one of [`ROUTES`].
    pub(crate) fn count_http_request(&self, route: &'static str, status: u16) {
        let labels = [route, labels::status_class(status)];
        self.mainstay.http_requests.with_label_values(&labels).inc();
    }

    /// Counts a connection that was closed because of a limit.
    pub(crate) fn count_refused_connection(&self) {
        self.mainstay.refused_connections.inc();
    }
}

/// Gauges hold signed integers.
fn to_i64(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
