//! Metrics. Only gauges have object names as labels, and their series are removed with the object.

mod compaction;
mod protection;

use std::sync::Arc;
use std::time::Duration;

use mainstay_coordination::Incident;
use mainstay_crds::etcd::MemberState;
use mainstay_crds::{ConditionStatus, ConditionType, EtcdStatus};
use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
};

use self::compaction::CompactionMetrics;
use self::protection::ProtectionMetrics;
use crate::model::{EtcdKey, JobState, NOT_CHECKED, ReconcileStep};

/// Media type of the rendered metrics.
pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReconcileOutcome {
    /// No step left.
    Settled,
    /// A step was taken, or a blocker is waited for.
    InProgress,
    Failed,
}

impl ReconcileOutcome {
    const ALL: [Self; 3] = [Self::Settled, Self::InProgress, Self::Failed];

    fn label(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::InProgress => "moving",
            Self::Failed => "failed",
        }
    }
}

/// Label values for `kind`; any other kind counts as `other`.
const WRITTEN_KINDS: [&str; 15] = [
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "Lease",
    "PodDisruptionBudget",
    "Service",
    "ConfigMap",
    "StatefulSet",
    "Pod",
    "PersistentVolumeClaim",
    "Job",
    "Etcd",
    "Event",
    "Secret",
    "other",
];

/// All metrics of this process. Clones share the values.
#[derive(Clone, Debug)]
pub struct ControllerMetrics(Arc<Series>);

#[derive(Debug)]
struct Series {
    registry: Registry,
    reconciles: IntCounterVec,
    reconcile_seconds: Histogram,
    writes: IntCounterVec,
    steps: IntCounterVec,
    condition: IntGaugeVec,
    members: IntGaugeVec,
    db_bytes: IntGaugeVec,
    generation_lag: IntGaugeVec,
    compaction: CompactionMetrics,
    protection: ProtectionMetrics,
}

fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    series: Result<C, prometheus::Error>,
) -> Result<C, prometheus::Error> {
    let series = series?;
    registry.register(Box::new(series.clone()))?;
    Ok(series)
}

impl Series {
    /// Creates series with a closed set of labels at zero: `rate()` misses the first increment of a series that appears late.
    fn init_labels(&self) {
        for outcome in ReconcileOutcome::ALL {
            self.reconciles.with_label_values(&[outcome.label()]);
        }
        for kind in WRITTEN_KINDS {
            self.writes.with_label_values(&[kind]);
        }
        for step in ReconcileStep::LABELS {
            self.steps.with_label_values(&[step]);
        }
    }
}

impl ControllerMetrics {
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counters = |name: &str, help: &str, label: &str| {
            let series = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(series.clone()))?;
            Ok::<_, prometheus::Error>(series)
        };
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let series = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(series.clone()))?;
            Ok::<_, prometheus::Error>(series)
        };
        let buckets = vec![0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
        let help = "Duration of one reconcile of an Etcd in seconds.";
        let opts =
            HistogramOpts::new("mainstay_controller_reconcile_seconds", help).buckets(buckets);
        let reconcile_seconds = Histogram::with_opts(opts)?;
        registry.register(Box::new(reconcile_seconds.clone()))?;
        let series = Series {
            reconciles: counters(
                "mainstay_controller_reconciles_total",
                "Reconciles of Etcds, by outcome.",
                "outcome",
            )?,
            writes: counters(
                "mainstay_controller_writes_total",
                "Writes to the API server, by kind of object.",
                "kind",
            )?,
            steps: counters(
                "mainstay_controller_steps_total",
                "Steps carried out, by step.",
                "step",
            )?,
            condition: gauges(
                "mainstay_etcd_condition",
                "Conditions of each Etcd: 1 is True, 0 is False, -1 is Unknown; absent for conditions not checked while hibernated.",
                &["namespace", "etcd", "type"],
            )?,
            members: gauges(
                "mainstay_etcd_members",
                "Members of each Etcd, by status.",
                &["namespace", "etcd", "status"],
            )?,
            db_bytes: gauges(
                "mainstay_etcd_db_bytes",
                "Size of the largest database file among the members of each Etcd.",
                &["namespace", "etcd"],
            )?,
            generation_lag: gauges(
                "mainstay_etcd_generation_lag",
                "Generations of the spec that are not reconciled yet.",
                &["namespace", "etcd"],
            )?,
            compaction: CompactionMetrics::register(&registry)?,
            protection: ProtectionMetrics::register(&registry)?,
            registry,
            reconcile_seconds,
        };
        series.init_labels();
        Ok(Self(Arc::new(series)))
    }

    /// All series in the Prometheus text format.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.0.registry.gather())
    }

    pub(crate) fn record_reconcile(&self, outcome: ReconcileOutcome, duration: Duration) {
        self.0
            .reconciles
            .with_label_values(&[outcome.label()])
            .inc();
        self.0.reconcile_seconds.observe(duration.as_secs_f64());
    }

    pub(crate) fn record_write(&self, kind: &str) {
        let kind = WRITTEN_KINDS
            .into_iter()
            .find(|known| *known == kind)
            .unwrap_or("other");
        self.0.writes.with_label_values(&[kind]).inc();
    }

    pub fn total_writes(&self) -> u64 {
        WRITTEN_KINDS
            .iter()
            .map(|kind| self.0.writes.with_label_values(&[kind]).get())
            .sum()
    }

    pub(crate) fn record_step(&self, label: &'static str) {
        self.0.steps.with_label_values(&[label]).inc();
    }

    pub(crate) fn record_status(&self, key: &EtcdKey, generation: i64, status: &EtcdStatus) {
        let EtcdKey { namespace, name } = key;
        for type_ in ConditionType::KNOWN {
            let mut conditions = status.conditions.iter().flatten();
            let reported = conditions.find(|condition| condition.type_ == *type_);
            let labels = [namespace.as_str(), name, type_.as_str()];
            // A removed condition, or one kept from before hibernation, is not exported as current.
            let Some(condition) = reported.filter(|condition| condition.reason != NOT_CHECKED)
            else {
                self.0.condition.remove_label_values(&labels).ok();
                continue;
            };
            let value = match condition.status {
                ConditionStatus::True => 1,
                ConditionStatus::False => 0,
                _ => -1,
            };
            self.0.condition.with_label_values(&labels).set(value);
        }
        for state in MemberState::KNOWN {
            let members = status.members.iter().flatten();
            let count = members.filter(|member| member.status == *state).count();
            let labels = [namespace.as_str(), name, state.as_str()];
            self.0
                .members
                .with_label_values(&labels)
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let sizes = status
            .members
            .iter()
            .flatten()
            .filter_map(|member| member.db_size_bytes);
        let labels = [namespace.as_str(), name];
        self.0
            .db_bytes
            .with_label_values(&labels)
            .set(sizes.max().unwrap_or_default());
        let recovery = status
            .mainstay
            .as_ref()
            .and_then(|mainstay| mainstay.recovery.as_ref());
        let is_recovering = recovery.is_some_and(|recovery| recovery.finished_at.is_none());
        self.0
            .protection
            .set_recovery_in_progress(key, is_recovering);
        self.0.compaction.add_etcd(key);
        let lag = generation - status.observed_generation.unwrap_or_default();
        self.0.generation_lag.with_label_values(&labels).set(lag);
    }

    pub(crate) fn record_recovery(&self, incident: &Incident) {
        self.0.protection.record_recovery(incident);
    }

    pub(crate) fn record_compaction(
        &self,
        key: &EtcdKey,
        state: &JobState,
        duration: Option<Duration>,
    ) {
        self.0.compaction.record_job_end(key, state, duration);
    }

    /// Number of running compaction Jobs in the namespace of an Etcd.
    pub(crate) fn set_running_compactions(&self, key: &EtcdKey, jobs: usize) {
        self.0.compaction.set_running(key, jobs);
    }

    /// Events since the last full snapshot; `None` when unknown.
    pub(crate) fn set_delta_events(&self, key: &EtcdKey, events: Option<i64>) {
        self.0.compaction.set_delta_events(key, events);
    }

    /// A full snapshot instead of a compaction has ended.
    pub(crate) fn record_fallback_snapshot(&self, key: &EtcdKey, succeeded: bool) {
        self.0.compaction.record_fallback_snapshot(key, succeeded);
    }

    pub(crate) fn record_drill(&self, key: &EtcdKey, succeeded: bool) {
        self.0.protection.record_drill(key, succeeded);
    }

    pub(crate) fn record_task_end(&self, kind: &'static str, state: &'static str) {
        self.0.protection.record_task_end(kind, state);
    }

    /// Removes all series of a deleted cluster.
    pub(crate) fn remove_cluster(&self, key: &EtcdKey) {
        let EtcdKey { namespace, name } = key;
        self.0.compaction.remove_etcd(key);
        self.0.protection.remove_cluster(key);
        for type_ in ConditionType::KNOWN {
            self.0
                .condition
                .remove_label_values(&[namespace.as_str(), name, type_.as_str()])
                .ok();
        }
        for state in MemberState::KNOWN {
            self.0
                .members
                .remove_label_values(&[namespace.as_str(), name, state.as_str()])
                .ok();
        }
        self.0
            .db_bytes
            .remove_label_values(&[namespace.as_str(), name])
            .ok();
        self.0
            .generation_lag
            .remove_label_values(&[namespace.as_str(), name])
            .ok();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;
    use std::path::Path;

    use prometheus::proto::MetricType;

    use super::*;

    #[test]
    fn metric_series_of_a_deleted_cluster_are_removed() {
        let metrics = ControllerMetrics::new().unwrap();
        let key = EtcdKey {
            namespace: "shoot".to_owned(),
            name: "main".to_owned(),
        };
        let before = metrics.render().unwrap();
        metrics.record_status(
            &key,
            3,
            &EtcdStatus {
                observed_generation: Some(1),
                ..EtcdStatus::default()
            },
        );
        let reported = metrics.render().unwrap();
        assert!(
            reported.contains(r#"mainstay_etcd_generation_lag{etcd="main",namespace="shoot"} 2"#),
            "{reported}"
        );
        metrics.remove_cluster(&key);
        assert_eq!(metrics.render().unwrap(), before);
    }

    fn ready_status(status: &str, reason: &str) -> EtcdStatus {
        let status = serde_json::json!({ "conditions": [{
            "type": "Ready", "status": status, "reason": reason, "message": "",
            "lastUpdateTime": "2026-11-16T12:00:00Z", "lastTransitionTime": "2026-11-16T12:00:00Z",
        }] });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn unchecked_or_missing_condition_has_no_metric() {
        const SERIES: &str =
            r#"mainstay_etcd_condition{etcd="main",namespace="shoot",type="Ready"}"#;
        let metrics = ControllerMetrics::new().unwrap();
        let key = EtcdKey {
            namespace: "shoot".to_owned(),
            name: "main".to_owned(),
        };
        let reported = |status: &EtcdStatus| {
            metrics.record_status(&key, 1, status);
            let text = metrics.render().unwrap();
            let value = text.lines().find_map(|line| line.strip_prefix(SERIES));
            value.map(|value| value.trim().to_owned())
        };
        let is = |value: &str| Some(value.to_owned());
        assert_eq!(
            reported(&ready_status("Unknown", "NoMembersInStatus")),
            is("-1")
        );
        assert_eq!(reported(&ready_status("False", "QuorumLost")), is("0"));
        assert_eq!(
            reported(&ready_status("False", NOT_CHECKED)),
            None,
            "hibernated"
        );
        assert_eq!(
            reported(&ready_status("True", "Quorate")),
            is("1"),
            "woken up"
        );
        assert_eq!(reported(&EtcdStatus::default()), None, "not in the status");
    }

    const BEGIN: &str = "<!-- begin: from the registry -->\n";
    const END: &str = "<!-- end: from the registry -->";

    /// The Markdown table of all metrics in the registry.
    fn render_table(metrics: &ControllerMetrics) -> String {
        let mut table =
            "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
        for family in metrics.0.registry.gather() {
            let form = match family.get_field_type() {
                MetricType::COUNTER => "counter",
                MetricType::GAUGE => "gauge",
                MetricType::HISTOGRAM => "histogram",
                other => panic!("{} is a {other:?}", family.name()),
            };
            let labels = family.get_metric()[0].get_label().iter();
            let labels: Vec<_> = labels.map(|pair| format!("`{}`", pair.name())).collect();
            let (name, labels, help) = (family.name(), labels.join(", "), family.help());
            writeln!(table, "| `{name}` | {form} | {labels} | {help} |").unwrap();
        }
        table
    }

    #[test]
    fn metrics_table_matches_the_registry() {
        let metrics = ControllerMetrics::new().unwrap();
        let key = EtcdKey {
            namespace: "shoot".to_owned(),
            name: "main".to_owned(),
        };
        metrics.record_status(&key, 1, &ready_status("True", "Quorate"));
        let done = JobState::Succeeded {
            at: jiff::Timestamp::UNIX_EPOCH,
            done: mainstay_verdict::CommandDetails::default(),
        };
        metrics.record_compaction(&key, &done, Some(Duration::from_secs(1)));
        metrics.set_running_compactions(&key, 0);
        metrics.set_delta_events(&key, Some(0));
        metrics.record_fallback_snapshot(&key, true);
        metrics.record_drill(&key, true);
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/controller.md");
        let text = fs::read_to_string(&page).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let expected = format!("{before}{BEGIN}\n{}\n{END}{after}", render_table(&metrics));
        if std::env::var_os("MAINSTAY_UPDATE_DOCS").is_some() {
            fs::write(&page, &expected).unwrap();
        } else {
            assert!(
                text == expected,
                "docs/reference/controller.md is stale: MAINSTAY_UPDATE_DOCS=1 cargo nextest run -p mainstay-controller metrics"
            );
        }
    }

    #[test]
    fn task_counters_start_at_zero() {
        let text = ControllerMetrics::new().unwrap().render().unwrap();
        for series in [
            r#"mainstay_tasks_total{kind="restore",state="Failed"} 0"#,
            r#"mainstay_tasks_total{kind="copyBackups",state="Succeeded"} 0"#,
        ] {
            assert!(text.contains(series), "{series}");
        }
    }

    #[test]
    fn every_step_label_is_exported_from_the_start() {
        let metrics = ControllerMetrics::new().unwrap();
        let text = metrics.render().unwrap();
        for label in ReconcileStep::LABELS {
            assert!(text.contains(&format!("step=\"{label}\"")), "{label}");
        }
    }
}
