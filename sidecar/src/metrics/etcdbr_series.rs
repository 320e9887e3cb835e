//! The series of etcd-backup-restore, which existing dashboards and alerts read: same names, types and labels, with two
//! differences. Buckets reach one hour instead of ten seconds, and no label holds an error text or an address.

use prometheus::{HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Result};

use super::labels::{self, GarbageLabel, pair_with_outcome, single_labels};
use super::registrar::{MetricDesc, Registrar};

const GARBAGE_COLLECTED: MetricDesc = (
    "etcdbr_snapshot_gc_total",
    "Objects that garbage collection deleted, or failed to delete.",
);
const LATEST_REVISION: MetricDesc = (
    "etcdbr_snapshot_latest_revision",
    "Last revision of the latest snapshot of a kind.",
);
const LATEST_TIMESTAMP: MetricDesc = (
    "etcdbr_snapshot_latest_timestamp",
    "Creation time of the latest snapshot of a kind, in Unix seconds.",
);
const REQUIRED: MetricDesc = (
    "etcdbr_snapshot_required",
    "1 while a snapshot of a kind is due because there are events to store.",
);
const SNAPSHOT_SECONDS: MetricDesc = (
    "etcdbr_snapshot_duration_seconds",
    "Seconds from the start of a snapshot until it was stored or failed.",
);
const LATEST_DELTAS: MetricDesc = (
    "etcdbr_snapstore_latest_deltas_total",
    "Delta snapshots since the latest full snapshot.",
);
const LATEST_DELTA_REVISIONS: MetricDesc = (
    "etcdbr_snapstore_latest_deltas_revisions_total",
    "Revisions in the delta snapshots since the latest full snapshot.",
);
const FAILURES: MetricDesc = (
    "etcdbr_snapshotter_failure",
    "Failures of the snapshotter, by class.",
);
const CLUSTER_SIZE: MetricDesc = ("etcdbr_cluster_size", "Members of the cluster.");
const IS_LEARNER: MetricDesc = (
    "etcdbr_is_learner",
    "1 while this sidecar's member is a learner.",
);
const PROMOTION: MetricDesc = (
    "etcdbr_member_promote_duration_seconds",
    "Seconds taken to promote this sidecar's member.",
);
const DEFRAGMENTATION: MetricDesc = (
    "etcdbr_defragmentation_duration_seconds",
    "Seconds taken to defragment a member.",
);

/// `etcdbr_*`.
#[derive(Clone, Debug)]
pub(super) struct EtcdbrSeries {
    pub(super) garbage_collected: IntCounterVec,
    pub(super) latest_revision: IntGaugeVec,
    pub(super) latest_timestamp: IntGaugeVec,
    pub(super) required: IntGaugeVec,
    pub(super) snapshot_seconds: HistogramVec,
    pub(super) latest_deltas: IntGauge,
    pub(super) latest_delta_revisions: IntGauge,
    pub(super) failures: IntCounterVec,
    pub(super) cluster_size: IntGauge,
    pub(super) is_learner: IntGauge,
    pub(super) promotion_seconds: HistogramVec,
    pub(super) defragmentation_seconds: HistogramVec,
}

impl EtcdbrSeries {
    pub(super) fn new(register: &Registrar<'_>) -> Result<Self> {
        let kinds = single_labels(labels::kind_labels());
        let outcomes = single_labels(["true", "false"]);
        Ok(Self {
            garbage_collected: register.counters(
                GARBAGE_COLLECTED,
                ["kind", "succeeded"],
                &pair_with_outcome(GarbageLabel::ALL.map(GarbageLabel::as_str)),
            )?,
            latest_revision: register.gauges(LATEST_REVISION, ["kind"], &kinds)?,
            latest_timestamp: register.gauges(LATEST_TIMESTAMP, ["kind"], &kinds)?,
            required: register.gauges(REQUIRED, ["kind"], &kinds)?,
            snapshot_seconds: register.histograms(
                SNAPSHOT_SECONDS,
                ["kind", "succeeded"],
                &pair_with_outcome(labels::kind_labels()),
            )?,
            latest_deltas: register.gauge(LATEST_DELTAS)?,
            latest_delta_revisions: register.gauge(LATEST_DELTA_REVISIONS)?,
            failures: register.counters(
                FAILURES,
                ["error"],
                &single_labels(labels::FAILURE_CLASSES),
            )?,
            cluster_size: register.gauge(CLUSTER_SIZE)?,
            is_learner: register.gauge(IS_LEARNER)?,
            promotion_seconds: register.histograms(PROMOTION, ["succeeded"], &outcomes)?,
            defragmentation_seconds: register.histograms(
                DEFRAGMENTATION,
                ["succeeded"],
                &outcomes,
            )?,
        })
    }
}
