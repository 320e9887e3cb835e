//! Metrics of recoveries, restore drills and tasks.

use mainstay_coordination::incident::{Incident, RecoveryCause, RecoveryStage};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::register;
use crate::model::EtcdKey;

#[derive(Debug)]
pub(super) struct ProtectionMetrics {
    recoveries: IntCounterVec,
    recovery_in_progress: IntGaugeVec,
    drills: IntCounterVec,
    drill_succeeded: IntGaugeVec,
    tasks: IntCounterVec,
}

const CAUSE_LABELS: [(RecoveryCause, &str); 4] = [
    (RecoveryCause::MemberLost, "member-lost"),
    (RecoveryCause::QuorumLost, "quorum-lost"),
    (RecoveryCause::FormerBackup, "former-backup"),
    (RecoveryCause::Requested, "requested"),
];
const TASK_KINDS: [&str; 9] = [
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
const CLUSTER_LABELS: [&str; 2] = ["namespace", "etcd"];

fn cause_label(of: RecoveryCause) -> &'static str {
    CAUSE_LABELS
        .iter()
        .find(|(cause, _)| *cause == of)
        .map_or("unknown", |(_, label)| label)
}

impl ProtectionMetrics {
    /// Registers the metrics; series with a closed set of labels start at zero.
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            register(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            register(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let new = Self {
            recoveries: counters(
                "mainstay_recoveries_total",
                "Recoveries of lost data, by cause and outcome.",
                &["cause", "outcome"],
            )?,
            recovery_in_progress: gauges(
                "mainstay_etcd_recovery_in_progress",
                "1 while lost data of the Etcd is being recovered, else 0.",
                &CLUSTER_LABELS,
            )?,
            drills: counters(
                "mainstay_restore_drills_total",
                "Restore drills, by outcome.",
                &["outcome"],
            )?,
            drill_succeeded: gauges(
                "mainstay_etcd_restore_drill_succeeded",
                "1 if the last restore drill of the Etcd succeeded, else 0.",
                &CLUSTER_LABELS,
            )?,
            tasks: counters(
                "mainstay_tasks_total",
                "Finished tasks, by kind and state.",
                &["kind", "state"],
            )?,
        };
        new.init_labels();
        Ok(new)
    }

    fn init_labels(&self) {
        for (_, cause) in CAUSE_LABELS {
            for outcome in ["succeeded", "abandoned"] {
                self.recoveries.with_label_values(&[cause, outcome]);
            }
        }
        for kind in TASK_KINDS {
            for state in ["Succeeded", "Failed", "Rejected"] {
                self.tasks.with_label_values(&[kind, state]);
            }
        }
        for outcome in ["succeeded", "failed"] {
            self.drills.with_label_values(&[outcome]);
        }
    }

    pub(super) fn record_recovery(&self, incident: &Incident) {
        let outcome = match incident.stage {
            RecoveryStage::Closed => "succeeded",
            _ => "abandoned",
        };
        self.recoveries
            .with_label_values(&[cause_label(incident.cause), outcome])
            .inc();
    }

    pub(super) fn set_recovery_in_progress(&self, key: &EtcdKey, in_progress: bool) {
        self.recovery_in_progress
            .with_label_values(&[key.namespace.as_str(), &key.name])
            .set(i64::from(in_progress));
    }

    pub(super) fn record_drill(&self, key: &EtcdKey, succeeded: bool) {
        let outcome = if succeeded { "succeeded" } else { "failed" };
        self.drills.with_label_values(&[outcome]).inc();
        self.drill_succeeded
            .with_label_values(&[key.namespace.as_str(), &key.name])
            .set(i64::from(succeeded));
    }

    pub(super) fn record_task_end(&self, kind: &'static str, state: &'static str) {
        self.tasks.with_label_values(&[kind, state]).inc();
    }

    pub(super) fn remove_cluster(&self, key: &EtcdKey) {
        let labels = [key.namespace.as_str(), key.name.as_str()];
        self.recovery_in_progress.remove_label_values(&labels).ok();
        self.drill_succeeded.remove_label_values(&labels).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_label() {
        for (of, _) in CAUSE_LABELS {
            assert_ne!(cause_label(of), "unknown");
        }
    }
}
