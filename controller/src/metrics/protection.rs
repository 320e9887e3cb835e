//! What is measured about data protection.

use mainstay_coordination::incident::{Cause, Incident, Stage};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use super::registered;
use crate::context::Key;

/// Everything measured about data protection.
#[derive(Debug)]
pub(super) struct Protection {
    recoveries: IntCounterVec,
    recovering: IntGaugeVec,
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
                "mainstay_recoveries_total",
                "Recoveries of lost data, by cause and outcome.",
                &["cause", "outcome"],
            )?,
            recovering: gauges(
                "mainstay_etcd_recovery_in_progress",
                "Whether data of each Etcd is being recovered.",
                &OF_CLUSTER,
            )?,
            drills: counters(
                "mainstay_restore_drills_total",
                "Rehearsals of a restore, by outcome.",
                &["outcome"],
            )?,
            drill_succeeded: gauges(
                "mainstay_etcd_restore_drill_succeeded",
                "Whether the last rehearsal of a restore of each Etcd went well.",
                &OF_CLUSTER,
            )?,
            tasks: counters(
                "mainstay_tasks_total",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_word() {
        for (of, _) in CAUSES {
            assert_ne!(cause(of), "unknown");
        }
    }
}
