//! Series that etcd-backup-restore does not have: role, lag of the capture, errors of the store, restorable range.

use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Result};

use super::labels::{self, GapCause, pair_labels, pair_with_outcome, single_labels};
use super::registrar::{MetricDesc, Registrar};
use crate::kubernetes::LeaseKind;
use crate::retention::FreezeReason;

const BUILD: MetricDesc = (
    "mainstay_build_info",
    "Always 1; the label holds the version.",
);
const ROLE: MetricDesc = (
    "mainstay_role",
    "1 for the current role of this sidecar, 0 for the other roles.",
);
const TRANSITIONS: MetricDesc = (
    "mainstay_election_transitions_total",
    "Changes of this sidecar to a role.",
);
const LAG_REVISIONS: MetricDesc = (
    "mainstay_watch_lag_revisions",
    "Revisions in etcd that are not captured yet, while leading.",
);
const LAG_SECONDS: MetricDesc = (
    "mainstay_watch_lag_seconds",
    "Seconds the capture has lagged behind etcd, while leading; 0 without lag.",
);
const RAW_BYTES: MetricDesc = (
    "mainstay_snapshot_raw_bytes_total",
    "Bytes of stored snapshots before compression.",
);
const STORED_BYTES: MetricDesc = (
    "mainstay_snapshot_stored_bytes_total",
    "Bytes of stored snapshots, as stored.",
);
const LATEST_BYTES: MetricDesc = (
    "mainstay_snapshot_latest_stored_bytes",
    "Size of the latest snapshot of a kind in bytes, as stored.",
);
const GAPS: MetricDesc = (
    "mainstay_gaps_total",
    "Ranges of revisions that could not be captured; each triggers a full snapshot.",
);
const OLDEST: MetricDesc = (
    "mainstay_restorable_oldest_revision",
    "Oldest revision that the backup can restore; 0 for none.",
);
const NEWEST: MetricDesc = (
    "mainstay_restorable_newest_revision",
    "Newest revision that the backup can restore; 0 for none.",
);
const STORE_ERRORS: MetricDesc = (
    "mainstay_store_errors_total",
    "Operations on the object store that failed after retries.",
);
const UPLOAD_PARTS: MetricDesc = (
    "mainstay_upload_parts_total",
    "Uploaded parts of multipart uploads.",
);
const BUFFER: MetricDesc = (
    "mainstay_delta_buffer_bytes",
    "Bytes in memory of captured events that are not stored yet.",
);
const UNKNOWN_LEASE_TTLS: MetricDesc = (
    "mainstay_lease_lives_unknown_total",
    "Events stored without the TTL of their lease, because etcd did not report it in time.",
);
const DAMAGED: MetricDesc = (
    "mainstay_damaged_objects",
    "Objects of the backup that garbage collection read and found damaged.",
);
const FROZEN: MetricDesc = (
    "mainstay_retention_frozen",
    "1 while garbage collection deletes nothing for this reason.",
);
const ALARM: MetricDesc = (
    "mainstay_etcd_alarm",
    "1 while etcd has an alarm of this kind.",
);
const LEASES: MetricDesc = (
    "mainstay_lease_updates_total",
    "Writes of this sidecar's Kubernetes Leases.",
);
const REQUESTS: MetricDesc = (
    "mainstay_http_requests_total",
    "HTTP responses, by path and status class.",
);
const REFUSED: MetricDesc = (
    "mainstay_http_connections_refused_total",
    "HTTP connections closed because of a connection limit.",
);

/// `mainstay_*`.
#[derive(Clone, Debug)]
pub(super) struct MainstaySeries {
    pub(super) role: IntGaugeVec,
    pub(super) transitions: IntCounterVec,
    pub(super) lag_revisions: IntGauge,
    pub(super) lag_seconds: Gauge,
    pub(super) raw_bytes: IntCounterVec,
    pub(super) stored_bytes: IntCounterVec,
    pub(super) latest_bytes: IntGaugeVec,
    pub(super) gaps: IntCounterVec,
    pub(super) oldest_restorable: IntGauge,
    pub(super) newest_restorable: IntGauge,
    pub(super) store_errors: IntCounterVec,
    pub(super) upload_parts: IntCounter,
    pub(super) buffer_bytes: IntGauge,
    pub(super) unknown_lease_ttls: IntCounter,
    pub(super) damaged_objects: IntGauge,
    pub(super) retention_frozen: IntGaugeVec,
    pub(super) alarm: IntGaugeVec,
    pub(super) lease_updates: IntCounterVec,
    pub(super) http_requests: IntCounterVec,
    pub(super) refused_connections: IntCounter,
}

impl MainstaySeries {
    pub(super) fn new(register: &Registrar<'_>) -> Result<Self> {
        let kinds = single_labels(labels::kind_labels());
        let role_labels = single_labels(labels::role_labels());
        let gaps = single_labels(GapCause::ALL.map(GapCause::as_str));
        let leases = pair_with_outcome(LeaseKind::ALL.map(LeaseKind::label));
        let responses = pair_labels(labels::ROUTES, labels::STATUS_CLASSES);
        let version = [[env!("CARGO_PKG_VERSION")]];
        register
            .gauges(BUILD, ["version"], &version)?
            .get_metric_with_label_values(&version[0])?
            .set(1);
        Ok(Self {
            role: register.gauges(ROLE, ["role"], &role_labels)?,
            transitions: register.counters(TRANSITIONS, ["to"], &role_labels)?,
            lag_revisions: register.gauge(LAG_REVISIONS)?,
            lag_seconds: register.register(Gauge::new(LAG_SECONDS.0, LAG_SECONDS.1)?)?,
            raw_bytes: register.counters(RAW_BYTES, ["kind"], &kinds)?,
            stored_bytes: register.counters(STORED_BYTES, ["kind"], &kinds)?,
            latest_bytes: register.gauges(LATEST_BYTES, ["kind"], &kinds)?,
            gaps: register.counters(GAPS, ["cause"], &gaps)?,
            oldest_restorable: register.gauge(OLDEST)?,
            newest_restorable: register.gauge(NEWEST)?,
            store_errors: register.counters(
                STORE_ERRORS,
                ["class"],
                &single_labels(labels::store_class_labels()),
            )?,
            upload_parts: register.counter(UPLOAD_PARTS)?,
            buffer_bytes: register.gauge(BUFFER)?,
            unknown_lease_ttls: register.counter(UNKNOWN_LEASE_TTLS)?,
            damaged_objects: register.gauge(DAMAGED)?,
            retention_frozen: register.gauges(
                FROZEN,
                ["reason"],
                &single_labels(FreezeReason::ALL.map(FreezeReason::as_str)),
            )?,
            alarm: register.gauges(ALARM, ["alarm"], &single_labels(labels::ALARM_KINDS))?,
            lease_updates: register.counters(LEASES, ["lease", "succeeded"], &leases)?,
            http_requests: register.counters(REQUESTS, ["route", "status"], &responses)?,
            refused_connections: register.counter(REFUSED)?,
        })
    }
}
