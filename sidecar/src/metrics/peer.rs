//! The series dashboards and alerts of the peer already read: its names, types and labels, with two
//! differences. Buckets reach an hour instead of ten seconds, and no label holds a text or an address.

use prometheus::{HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Result};

use super::labels::{self, Collected, each, with_outcome};
use super::register::{Register, Title};

const COLLECTED: Title = (
    "etcdbr_snapshot_gc_total",
    "Objects garbage collection removed, or failed to remove.",
);
const LATEST_REVISION: Title = (
    "etcdbr_snapshot_latest_revision",
    "Last revision of the newest snapshot of a kind.",
);
const LATEST_TIMESTAMP: Title = (
    "etcdbr_snapshot_latest_timestamp",
    "Creation time of the newest snapshot of a kind, unix seconds.",
);
const REQUIRED: Title = (
    "etcdbr_snapshot_required",
    "1 while a snapshot of a kind is due: there is something it would hold.",
);
const SNAPSHOT_SECONDS: Title = (
    "etcdbr_snapshot_duration_seconds",
    "Time from the begin of a snapshot until it was stored, or given up.",
);
const LATEST_DELTAS: Title = (
    "etcdbr_snapstore_latest_deltas_total",
    "Deltas behind the newest full snapshot.",
);
const LATEST_DELTA_REVISIONS: Title = (
    "etcdbr_snapstore_latest_deltas_revisions_total",
    "Revisions in the deltas behind the newest full snapshot.",
);
const FAILURES: Title = (
    "etcdbr_snapshotter_failure",
    "Times the snapshotter failed, by class of the failure.",
);
const CLUSTER_SIZE: Title = ("etcdbr_cluster_size", "Members of the cluster.");
const IS_LEARNER: Title = (
    "etcdbr_is_learner",
    "1 while the member of this sidecar does not vote yet.",
);
const PROMOTION: Title = (
    "etcdbr_member_promote_duration_seconds",
    "Time it took to promote the member of this sidecar.",
);
const DEFRAGMENTATION: Title = (
    "etcdbr_defragmentation_duration_seconds",
    "Time it took to defragment a member.",
);

/// `etcdbr_*`.
#[derive(Clone, Debug)]
pub(super) struct PeerSeries {
    pub(super) collected: IntCounterVec,
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

impl PeerSeries {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let kinds = each(labels::kinds());
        let outcomes = each(["true", "false"]);
        Ok(Self {
            collected: register.counters(
                COLLECTED,
                ["kind", "succeeded"],
                &with_outcome(Collected::ALL.map(Collected::word)),
            )?,
            latest_revision: register.gauges(LATEST_REVISION, ["kind"], &kinds)?,
            latest_timestamp: register.gauges(LATEST_TIMESTAMP, ["kind"], &kinds)?,
            required: register.gauges(REQUIRED, ["kind"], &kinds)?,
            snapshot_seconds: register.durations(
                SNAPSHOT_SECONDS,
                ["kind", "succeeded"],
                &with_outcome(labels::kinds()),
            )?,
            latest_deltas: register.gauge(LATEST_DELTAS)?,
            latest_delta_revisions: register.gauge(LATEST_DELTA_REVISIONS)?,
            failures: register.counters(FAILURES, ["error"], &each(labels::FAILURES))?,
            cluster_size: register.gauge(CLUSTER_SIZE)?,
            is_learner: register.gauge(IS_LEARNER)?,
            promotion_seconds: register.durations(PROMOTION, ["succeeded"], &outcomes)?,
            defragmentation_seconds: register.durations(
                DEFRAGMENTATION,
                ["succeeded"],
                &outcomes,
            )?,
        })
    }
}
