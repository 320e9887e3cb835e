//! What the peer does not tell: who leads and since when, how far the capture is behind, what the store
//! refused, what can be restored.

use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Result};

use super::labels::{self, GapCause, LeaseKind, each, pairs, with_outcome};
use super::register::{Register, Title};

const BUILD: Title = ("mainstay_build_info", "1; the version is the label.");
const ROLE: Title = (
    "mainstay_role",
    "1 for what this sidecar is to the cluster, 0 for what it is not.",
);
const TRANSITIONS: Title = (
    "mainstay_election_transitions_total",
    "Times this sidecar became what the label says.",
);
const LAG_REVISIONS: Title = (
    "mainstay_watch_lag_revisions",
    "Revisions etcd has and the capture has not, while leading.",
);
const LAG_SECONDS: Title = (
    "mainstay_watch_lag_seconds",
    "How long the capture has been behind etcd, while leading; 0 when it is not.",
);
const RAW_BYTES: Title = (
    "mainstay_snapshot_raw_bytes_total",
    "Bytes of stored snapshots before compression.",
);
const STORED_BYTES: Title = (
    "mainstay_snapshot_stored_bytes_total",
    "Bytes of stored snapshots as the store keeps them.",
);
const LATEST_BYTES: Title = (
    "mainstay_snapshot_latest_stored_bytes",
    "Size of the newest snapshot of a kind as the store keeps it.",
);
const GAPS: Title = (
    "mainstay_gaps_total",
    "Ranges of revisions that could not be captured; each is answered with a full snapshot.",
);
const OLDEST: Title = (
    "mainstay_restorable_oldest_revision",
    "The oldest revision the backup can restore; 0 when there is none.",
);
const NEWEST: Title = (
    "mainstay_restorable_newest_revision",
    "The newest revision the backup can restore; 0 when there is none.",
);
const STORE_ERRORS: Title = (
    "mainstay_store_errors_total",
    "Operations on the store that failed, after retries.",
);
const UPLOAD_PARTS: Title = (
    "mainstay_upload_parts_total",
    "Parts of multipart uploads that were sent.",
);
const BUFFER: Title = (
    "mainstay_delta_buffer_bytes",
    "Captured events that are not stored yet, as bytes in memory.",
);
const LEASE_LIVES: Title = (
    "mainstay_lease_lives_unknown_total",
    "Events stored without the life of their lease, because etcd did not tell it in time.",
);
const DAMAGED: Title = (
    "mainstay_damaged_objects",
    "Objects of the backup that were read by retention and found damaged.",
);
const ALARM: Title = (
    "mainstay_etcd_alarm",
    "1 while etcd has an alarm of this kind.",
);
const LEASES: Title = (
    "mainstay_lease_updates_total",
    "Writes of the Kubernetes leases of this sidecar.",
);
const REQUESTS: Title = (
    "mainstay_http_requests_total",
    "Answers given over HTTP, by path and class of the status.",
);
const REFUSED: Title = (
    "mainstay_http_connections_refused_total",
    "Connections closed at once because there were too many.",
);

/// `mainstay_*`.
#[derive(Clone, Debug)]
pub(super) struct OwnSeries {
    pub(super) role: IntGaugeVec,
    pub(super) transitions: IntCounterVec,
    pub(super) lag_revisions: IntGauge,
    pub(super) lag_seconds: Gauge,
    pub(super) raw_bytes: IntCounterVec,
    pub(super) stored_bytes: IntCounterVec,
    pub(super) latest_bytes: IntGaugeVec,
    pub(super) gaps: IntCounterVec,
    pub(super) oldest: IntGauge,
    pub(super) newest: IntGauge,
    pub(super) store_errors: IntCounterVec,
    pub(super) upload_parts: IntCounter,
    pub(super) buffer_bytes: IntGauge,
    pub(super) lease_lives: IntCounter,
    pub(super) damaged: IntGauge,
    pub(super) alarm: IntGaugeVec,
    pub(super) leases: IntCounterVec,
    pub(super) requests: IntCounterVec,
    pub(super) refused: IntCounter,
}

impl OwnSeries {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let kinds = each(labels::kinds());
        let standings = each(labels::standings());
        let gaps = each(GapCause::ALL.map(GapCause::word));
        let leases = with_outcome(LeaseKind::ALL.map(LeaseKind::word));
        let answers = pairs(labels::ROUTES, labels::ANSWERS);
        let version = [[env!("CARGO_PKG_VERSION")]];
        register
            .gauges(BUILD, ["version"], &version)?
            .get_metric_with_label_values(&version[0])?
            .set(1);
        Ok(Self {
            role: register.gauges(ROLE, ["role"], &standings)?,
            transitions: register.counters(TRANSITIONS, ["to"], &standings)?,
            lag_revisions: register.gauge(LAG_REVISIONS)?,
            lag_seconds: register.keep(Gauge::new(LAG_SECONDS.0, LAG_SECONDS.1)?)?,
            raw_bytes: register.counters(RAW_BYTES, ["kind"], &kinds)?,
            stored_bytes: register.counters(STORED_BYTES, ["kind"], &kinds)?,
            latest_bytes: register.gauges(LATEST_BYTES, ["kind"], &kinds)?,
            gaps: register.counters(GAPS, ["cause"], &gaps)?,
            oldest: register.gauge(OLDEST)?,
            newest: register.gauge(NEWEST)?,
            store_errors: register.counters(
                STORE_ERRORS,
                ["class"],
                &each(labels::store_classes()),
            )?,
            upload_parts: register.counter(UPLOAD_PARTS)?,
            buffer_bytes: register.gauge(BUFFER)?,
            lease_lives: register.counter(LEASE_LIVES)?,
            damaged: register.gauge(DAMAGED)?,
            alarm: register.gauges(ALARM, ["alarm"], &each(labels::ALARMS))?,
            leases: register.counters(LEASES, ["lease", "succeeded"], &leases)?,
            requests: register.counters(REQUESTS, ["route", "status"], &answers)?,
            refused: register.counter(REFUSED)?,
        })
    }
}
