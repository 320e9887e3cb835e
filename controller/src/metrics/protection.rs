//! What is measured about data protection. Names that begin with `etcddruid_` are etcd-druid's: dashboards rely on them.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, exponential_buckets,
};
use steward_coordination::incident::{Cause, Incident, Stage};

use crate::context::Key;
use crate::observe::JobState;

/// Everything measured about data protection.
#[derive(Debug)]
pub(super) struct Protection {
    recoveries: IntCounterVec,
    recovering: IntGaugeVec,
    compactions: IntCounterVec,
    fall_backs: IntCounterVec,
    compacting: IntGaugeVec,
    compaction_seconds: HistogramVec,
    delta_events: IntGaugeVec,
    drills: IntCounterVec,
    drill_succeeded: IntGaugeVec,
    tasks: IntCounterVec,
}

const CAUSES: [(Cause, &str); 4] = [
    (Cause::MemberLost, "member-lost"),
    (Cause::QuorumLost, "quorum-lost"),
    (Cause::FormerBackup, "former-backup"),
    (Cause::Requested, "requested"),
];
/// Kinds of tasks.
const TASKS: [&str; 9] = [
    "copyBackups",
    "onDemandSnapshot",
    "restore",
    "compact",
    "defragment",
    "verifyBackup",
    "recoverQuorum",
    "moveLeader",
    "unknown",
];
const OF_CLUSTER: [&str; 2] = ["namespace", "etcd"];

fn cause(of: Cause) -> &'static str {
    CAUSES
        .iter()
        .find(|(cause, _)| *cause == of)
        .map_or("unknown", |(_, word)| word)
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    series: Result<C, prometheus::Error>,
) -> Result<C, prometheus::Error> {
    let series = series?;
    registry.register(Box::new(series.clone()))?;
    Ok(series)
}

fn compaction_seconds() -> Result<HistogramVec, prometheus::Error> {
    let help = "Seconds Jobs took that folded deltas, by how they ended.";
    let opts = HistogramOpts::new("etcddruid_compaction_job_duration_seconds", help)
        .buckets(exponential_buckets(15.0, 2.0, 11)?);
    HistogramVec::new(opts, &["succeeded", "etcd_namespace"])
}

impl Protection {
    /// All series, at zero where their labels are known.
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let new = Self {
            recoveries: counters(
                "steward_recoveries_total",
                "Recoveries of lost data, by cause and outcome.",
                &["cause", "outcome"],
            )?,
            recovering: gauges(
                "steward_etcd_recovery_in_progress",
                "Whether data of each Etcd is being recovered.",
                &OF_CLUSTER,
            )?,
            compactions: counters(
                "etcddruid_compaction_jobs_total",
                "Jobs that folded deltas into a full snapshot, by how they ended.",
                &["succeeded", "failureReason", "etcd_namespace"],
            )?,
            fall_backs: counters(
                "etcddruid_compaction_full_snapshot_triggered_total",
                "Full snapshots asked for in place of a compaction.",
                &["succeeded", "etcd_namespace"],
            )?,
            compacting: gauges(
                "etcddruid_compaction_jobs_current",
                "Jobs that fold deltas now.",
                &["etcd_namespace"],
            )?,
            compaction_seconds: registered(registry, compaction_seconds())?,
            delta_events: gauges(
                "etcddruid_compaction_num_delta_events",
                "Changes since the last full snapshot, of the Etcd of a namespace that has most.",
                &["etcd_namespace"],
            )?,
            drills: counters(
                "steward_restore_drills_total",
                "Rehearsals of a restore, by outcome.",
                &["outcome"],
            )?,
            drill_succeeded: gauges(
                "steward_etcd_restore_drill_succeeded",
                "Whether the last rehearsal of a restore of each Etcd went well.",
                &OF_CLUSTER,
            )?,
            tasks: counters(
                "steward_tasks_total",
                "Tasks that came to an end, by kind and state.",
                &["kind", "state"],
            )?,
        };
        new.at_zero();
        Ok(new)
    }

    fn at_zero(&self) {
        for (_, cause) in CAUSES {
            for outcome in ["succeeded", "abandoned"] {
                self.recoveries.with_label_values(&[cause, outcome]);
            }
        }
        for kind in TASKS {
            for state in ["Succeeded", "Failed", "Rejected"] {
                self.tasks.with_label_values(&[kind, state]);
            }
        }
        for outcome in ["succeeded", "failed"] {
            self.drills.with_label_values(&[outcome]);
        }
    }

    pub(super) fn recovered(&self, incident: &Incident) {
        let outcome = match incident.stage {
            Stage::Closed => "succeeded",
            _ => "abandoned",
        };
        self.recoveries
            .with_label_values(&[cause(incident.cause), outcome])
            .inc();
    }

    pub(super) fn recovering(&self, key: &Key, goes_on: bool) {
        self.recovering
            .with_label_values(&[key.namespace.as_str(), &key.name])
            .set(i64::from(goes_on));
    }

    pub(super) fn compacted(&self, namespace: &str, state: &JobState, took: Option<Duration>) {
        let (succeeded, reason) = match state {
            JobState::Running => return,
            JobState::Succeeded { .. } => ("true", "none"),
            JobState::Failed { failure, .. } => ("false", failure.class.label()),
        };
        self.compactions
            .with_label_values(&[succeeded, reason, namespace])
            .inc();
        if let Some(took) = took {
            self.compaction_seconds
                .with_label_values(&[succeeded, namespace])
                .observe(took.as_secs_f64());
        }
    }

    pub(super) fn compacting(&self, namespace: &str, jobs: usize) {
        self.compacting
            .with_label_values(&[namespace])
            .set(i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    pub(super) fn delta_events(&self, namespace: &str, events: i64) {
        self.delta_events
            .with_label_values(&[namespace])
            .set(events);
    }

    pub(super) fn fell_back(&self, namespace: &str, succeeded: bool) {
        let succeeded = if succeeded { "true" } else { "false" };
        self.fall_backs
            .with_label_values(&[succeeded, namespace])
            .inc();
    }

    pub(super) fn drilled(&self, key: &Key, succeeded: bool) {
        let outcome = if succeeded { "succeeded" } else { "failed" };
        self.drills.with_label_values(&[outcome]).inc();
        self.drill_succeeded
            .with_label_values(&[key.namespace.as_str(), &key.name])
            .set(i64::from(succeeded));
    }

    pub(super) fn ended(&self, kind: &'static str, state: &'static str) {
        self.tasks.with_label_values(&[kind, state]).inc();
    }

    pub(super) fn forget(&self, key: &Key) {
        let labels = [key.namespace.as_str(), key.name.as_str()];
        self.recovering.remove_label_values(&labels).ok();
        self.drill_succeeded.remove_label_values(&labels).ok();
    }
}

/// Labels of failures are a closed list.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::FailureClass;

    #[test]
    fn every_failure_has_one_of_the_labels_dashboards_know() {
        let known = [
            "preempted",
            "evicted",
            "deadlineExceeded",
            "processFailure",
            "unknown",
        ];
        for class in FailureClass::ALL {
            assert!(known.contains(&class.label()), "{class:?}");
        }
    }

    #[test]
    fn every_cause_has_a_word() {
        for (of, _) in CAUSES {
            assert_ne!(cause(of), "unknown");
        }
    }
}
