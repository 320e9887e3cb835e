//! What is measured, and how it is told: one registry, rendered as Prometheus reads it.
//!
//! ```text
//! snapshotter, tail, election, leases, HTTP ──► Metrics ──► peer: etcdbr_*   ┐
//!                                                        ├─► own:  mainstay_*  ├─► render ─► /metrics
//! kernel, clock ─────────────────────── at the scrape ──► scraped             ┘
//! ```
//!
//! **Holds**: labels come from closed lists (`labels`), never from a text, an address or an object key; every
//! label set exists at zero before anything happened. The table in `docs/reference/metrics.md` is made from the registry
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
use mainstay_archive::name::Kind;
use mainstay_ids::Revision;
use mainstay_store::Class;
use prometheus::{Registry, TextEncoder};

use crate::state::{Standing, Stored};
use duty::Duty;
use own::OwnSeries;
use peer::PeerSeries;
use register::{Register, Title};
use scraped::Scraped;

pub use labels::{ALARMS, Collected, FAILURES, GapCause, LeaseKind, OTHER_ROUTE, ROUTES};

/// Media type of what [`Metrics::render`] gives.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

const AGE: Title = (
    "mainstay_snapshot_age_seconds",
    "Seconds since the last success of a kind, on the sidecar that is to take the snapshots; without a success, \
     since that is its duty. 0 where it is the duty of another.",
);

/// Everything this process measures. Clones share the values.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    peer: PeerSeries,
    own: OwnSeries,
    duty: Arc<Mutex<Duty>>,
}

impl Metrics {
    /// All series, at zero.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let register = Register(&registry);
        let (peer, own) = (PeerSeries::new(&register)?, OwnSeries::new(&register)?);
        let duty = Arc::new(Mutex::new(Duty::new(Timestamp::now())));
        let shared = Arc::clone(&duty);
        register.keep(Scraped::gauges(AGE, "kind", move || {
            let duty = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Timestamp::now();
            let age = |kind| (labels::kind(kind), duty.age_seconds(kind, now));
            labels::KINDS.map(age).to_vec()
        })?)?;
        scraped::register_process(&register)?;
        let metrics = Self {
            registry,
            peer,
            own,
            duty,
        };
        metrics.standing(Standing::default());
        Ok(metrics)
    }

    /// All series as text. Reads a few small files of `/proc`.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// Snapshots and the store.
impl Metrics {
    /// A snapshot was stored, or given up, after `seconds`.
    pub fn snapshot_finished(&self, kind: Kind, succeeded: bool, seconds: f64) {
        let labels = [labels::kind(kind), labels::outcome(succeeded)];
        let series = &self.peer.snapshot_seconds;
        series.with_label_values(&labels).observe(seconds);
        if succeeded {
            self.succeeded_at(kind, Timestamp::now());
        }
    }

    /// The last success of a kind was then: a snapshot found in the store, or a delta that had nothing to write.
    /// Never moves the age back.
    pub fn succeeded_at(&self, kind: Kind, at: Timestamp) {
        self.on_duty(|duty| duty.succeeded(kind, at));
    }

    /// A snapshot is in the store; `raw_bytes` is what it was before compression.
    pub fn snapshot_stored(&self, stored: &Stored, raw_bytes: u64) {
        let label = [labels::kind(stored.name.kind)];
        let raw = self.own.raw_bytes.with_label_values(&label);
        raw.inc_by(raw_bytes);
        let total = self.own.stored_bytes.with_label_values(&label);
        total.inc_by(stored.size);
        self.latest(stored);
    }

    /// The newest snapshot of its kind is this one, whoever stored it.
    pub fn latest(&self, stored: &Stored) {
        let label = [labels::kind(stored.name.kind)];
        let set = |series: &prometheus::IntGaugeVec, value| {
            series.with_label_values(&label).set(value);
        };
        set(&self.peer.latest_revision, stored.name.last.0);
        set(&self.peer.latest_timestamp, stored.name.created);
        set(&self.own.latest_bytes, signed(stored.size));
    }

    /// Whether a snapshot of a kind is due.
    pub fn snapshot_required(&self, kind: Kind, is_required: bool) {
        let series = &self.peer.required;
        let label = [labels::kind(kind)];
        series.with_label_values(&label).set(is_required.into());
    }

    /// The snapshotter failed; `class` is a word of a closed list, see [`FAILURES`].
    pub fn snapshotter_failed(&self, class: &'static str) {
        self.peer.failures.with_label_values(&[class]).inc();
    }

    /// The store refused, after retries.
    pub fn store_failed(&self, class: Class) {
        let series = &self.own.store_errors;
        series.with_label_values(&[class.name()]).inc();
    }

    /// Parts of a multipart upload were sent.
    pub fn upload_parts(&self, parts: usize) {
        self.own.upload_parts.inc_by(parts as u64);
    }

    /// What the backup can restore, and what lies behind its newest full snapshot.
    pub fn restorable(
        &self,
        oldest: Option<Revision>,
        newest: Option<Revision>,
        deltas: usize,
        delta_revisions: i64,
    ) {
        self.own.oldest.set(oldest.unwrap_or_default().0);
        self.own.newest.set(newest.unwrap_or_default().0);
        let deltas = i64::try_from(deltas).unwrap_or(i64::MAX);
        self.peer.latest_deltas.set(deltas);
        self.peer.latest_delta_revisions.set(delta_revisions);
    }

    /// Objects that were read and found damaged.
    pub fn damaged_objects(&self, objects: usize) {
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        self.own.damaged.set(objects);
    }

    /// Garbage collection removed an object, or failed to.
    pub fn collected(&self, what: impl Into<Collected>, succeeded: bool) {
        let labels = [what.into().word(), labels::outcome(succeeded)];
        self.peer.collected.with_label_values(&labels).inc();
    }
}

/// Election and capture.
impl Metrics {
    /// What this sidecar is now.
    pub fn standing(&self, now: Standing) {
        for standing in Standing::ALL {
            let series = self.own.role.with_label_values(&[standing.word()]);
            series.set((standing == now).into());
        }
        if now != Standing::Leader {
            // Nothing is captured here any more.
            self.watch_lag(0, 0.0);
            self.buffer_bytes(0);
        }
        if matches!(now, Standing::Follower | Standing::Learner) {
            // Whoever leads reads the backup, and tells. While nobody does, the damage is still there.
            self.damaged_objects(0);
        }
        self.on_duty(|duty| duty.standing(now, Timestamp::now()));
    }

    /// It became that.
    pub fn election_changed(&self, to: Standing) {
        self.own.transitions.with_label_values(&[to.word()]).inc();
        self.standing(to);
    }

    /// How far the capture is behind etcd.
    pub fn watch_lag(&self, revisions: i64, seconds: f64) {
        self.own.lag_revisions.set(revisions);
        self.own.lag_seconds.set(seconds);
    }

    /// What is captured and not stored.
    pub fn buffer_bytes(&self, bytes: u64) {
        self.own.buffer_bytes.set(signed(bytes));
    }

    /// Events are captured without the life of their lease.
    pub fn lease_lives_unknown(&self, events: usize) {
        self.own.lease_lives.inc_by(events as u64);
    }

    /// Revisions are missing.
    pub fn gap(&self, cause: GapCause) {
        self.own.gaps.with_label_values(&[cause.word()]).inc();
    }

    fn on_duty(&self, change: impl FnOnce(&mut Duty)) {
        change(&mut self.duty.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The cluster, and those who ask.
impl Metrics {
    /// A member was defragmented, or was not, after `seconds`.
    pub fn defragmented(&self, succeeded: bool, seconds: f64) {
        let series = &self.peer.defragmentation_seconds;
        let label = [labels::outcome(succeeded)];
        series.with_label_values(&label).observe(seconds);
    }

    /// Whether the member of this sidecar is a learner.
    pub fn learner(&self, is_learner: bool) {
        self.peer.is_learner.set(is_learner.into());
    }

    /// The member of this sidecar was promoted, or was not, after `seconds`.
    pub fn promoted(&self, succeeded: bool, seconds: f64) {
        let series = &self.peer.promotion_seconds;
        let label = [labels::outcome(succeeded)];
        series.with_label_values(&label).observe(seconds);
    }

    /// Whether etcd has an alarm; `kind` is a word of a closed list, see [`ALARMS`].
    pub fn alarm(&self, kind: &'static str, is_active: bool) {
        let series = &self.own.alarm;
        series.with_label_values(&[kind]).set(is_active.into());
    }

    /// Members of the cluster.
    pub fn cluster_size(&self, members: usize) {
        let members = i64::try_from(members).unwrap_or(i64::MAX);
        self.peer.cluster_size.set(members);
    }

    /// A Kubernetes lease was written, or was not.
    pub fn lease_updated(&self, lease: LeaseKind, succeeded: bool) {
        let labels = [lease.word(), labels::outcome(succeeded)];
        self.own.leases.with_label_values(&labels).inc();
    }

    /// A request was answered; `route` is one of [`ROUTES`].
    pub fn http_request(&self, route: &'static str, status: u16) {
        let labels = [route, labels::answer(status)];
        self.own.requests.with_label_values(&labels).inc();
    }

    /// A connection was closed because there are too many.
    pub fn http_refused(&self) {
        self.own.refused.inc();
    }
}

/// A size as gauges keep it.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
