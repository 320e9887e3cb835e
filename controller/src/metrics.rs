//! What is measured. Names of objects are labels of gauges only, and go with the object.

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

use self::compaction::Compaction;
use self::protection::Protection;
use crate::context::Key;
use crate::decide::Step;
use crate::observe::JobState;
use crate::status::NOT_CHECKED;

/// Media type of what [`Metrics::render`] gives.
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was to do.
    Settled,
    /// Something was done, or is waited for.
    Moving,
    /// It failed.
    Failed,
}

impl Outcome {
    const ALL: [Self; 3] = [Self::Settled, Self::Moving, Self::Failed];

    fn word(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Moving => "moving",
            Self::Failed => "failed",
        }
    }
}

/// Kinds that are written; anything else is counted as `other`.
const KINDS: [&str; 15] = [
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

/// Everything this process measures. Clones share the values.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Series>);

#[derive(Debug)]
struct Series {
    registry: Registry,
    passes: IntCounterVec,
    seconds: Histogram,
    writes: IntCounterVec,
    steps: IntCounterVec,
    condition: IntGaugeVec,
    members: IntGaugeVec,
    db_bytes: IntGaugeVec,
    generation_lag: IntGaugeVec,
    compaction: Compaction,
    protection: Protection,
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    series: Result<C, prometheus::Error>,
) -> Result<C, prometheus::Error> {
    let series = series?;
    registry.register(Box::new(series.clone()))?;
    Ok(series)
}

impl Series {
    /// What is of closed lists exists before anything happened.
    fn begin(&self) {
        for outcome in Outcome::ALL {
            self.passes.with_label_values(&[outcome.word()]);
        }
        for kind in KINDS {
            self.writes.with_label_values(&[kind]);
        }
        for step in Step::WORDS {
            self.steps.with_label_values(&[step]);
        }
    }
}

impl Metrics {
    /// All series, at zero.
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
        let help = "Seconds one pass over one Etcd took.";
        let opts =
            HistogramOpts::new("mainstay_controller_reconcile_seconds", help).buckets(buckets);
        let seconds = Histogram::with_opts(opts)?;
        registry.register(Box::new(seconds.clone()))?;
        let series = Series {
            passes: counters(
                "mainstay_controller_reconciles_total",
                "Passes over Etcds, by how they ended.",
                "outcome",
            )?,
            writes: counters(
                "mainstay_controller_writes_total",
                "Writes to the API server, by kind of object.",
                "kind",
            )?,
            steps: counters(
                "mainstay_controller_steps_total",
                "Steps taken, by kind.",
                "step",
            )?,
            condition: gauges(
                "mainstay_etcd_condition",
                "Conditions of each Etcd: 1 is True, 0 is False, -1 is Unknown; none of what is not checked while it sleeps.",
                &["namespace", "etcd", "type"],
            )?,
            members: gauges(
                "mainstay_etcd_members",
                "Members of each Etcd, by how they are.",
                &["namespace", "etcd", "status"],
            )?,
            db_bytes: gauges(
                "mainstay_etcd_db_bytes",
                "Size of the largest database file among the members of each Etcd.",
                &["namespace", "etcd"],
            )?,
            generation_lag: gauges(
                "mainstay_etcd_generation_lag",
                "Generations of the spec that were not acted on yet.",
                &["namespace", "etcd"],
            )?,
            compaction: Compaction::register(&registry)?,
            protection: Protection::register(&registry)?,
            registry,
            seconds,
        };
        series.begin();
        Ok(Self(Arc::new(series)))
    }

    /// All series as text.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.0.registry.gather())
    }

    /// A pass ended.
    pub fn passed(&self, outcome: Outcome, took: Duration) {
        self.0.passes.with_label_values(&[outcome.word()]).inc();
        self.0.seconds.observe(took.as_secs_f64());
    }

    /// An object was written.
    pub fn wrote(&self, kind: &str) {
        let kind = KINDS
            .into_iter()
            .find(|known| *known == kind)
            .unwrap_or("other");
        self.0.writes.with_label_values(&[kind]).inc();
    }

    /// Writes so far, of all kinds.
    pub fn writes(&self) -> u64 {
        KINDS
            .iter()
            .map(|kind| self.0.writes.with_label_values(&[kind]).get())
            .sum()
    }

    /// A step was taken.
    pub fn stepped(&self, word: &'static str) {
        self.0.steps.with_label_values(&[word]).inc();
    }

    /// What is told of a cluster.
    pub fn told(&self, key: &Key, generation: i64, status: &EtcdStatus) {
        let Key { namespace, name } = key;
        for type_ in ConditionType::KNOWN {
            let mut conditions = status.conditions.iter().flatten();
            let told = conditions.find(|condition| condition.type_ == *type_);
            let labels = [namespace.as_str(), name, type_.as_str()];
            // What is said no more, or was true when the cluster fell asleep, is not told as if it were so now.
            let Some(condition) = told.filter(|condition| condition.reason != NOT_CHECKED) else {
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
            .and_then(|ours| ours.recovery.as_ref());
        let goes_on = recovery.is_some_and(|recovery| recovery.finished_at.is_none());
        self.0.protection.recovering(key, goes_on);
        self.0.compaction.is_there(key);
        let lag = generation - status.observed_generation.unwrap_or_default();
        self.0.generation_lag.with_label_values(&labels).set(lag);
    }

    /// A recovery of lost data is over.
    pub fn recovered(&self, incident: &Incident) {
        self.0.protection.recovered(incident);
    }

    /// A Job that folded deltas is over.
    pub fn compacted(&self, key: &Key, state: &JobState, took: Option<Duration>) {
        self.0.compaction.ended(key, state, took);
    }

    /// How many Jobs fold deltas in the namespace of an Etcd.
    pub fn compacting(&self, key: &Key, jobs: usize) {
        self.0.compaction.running(key, jobs);
    }

    /// How many changes there were since the last full snapshot; `None` where nobody knows.
    pub fn delta_events(&self, key: &Key, events: Option<i64>) {
        self.0.compaction.delta_events(key, events);
    }

    /// A full snapshot was asked for in place of a compaction.
    pub fn fell_back(&self, key: &Key, succeeded: bool) {
        self.0.compaction.fell_back(key, succeeded);
    }

    /// A rehearsal of a restore is over.
    pub fn drilled(&self, key: &Key, succeeded: bool) {
        self.0.protection.drilled(key, succeeded);
    }

    /// A task came to an end.
    pub fn ended(&self, kind: &'static str, state: &'static str) {
        self.0.protection.ended(kind, state);
    }

    /// A cluster is gone, and its series with it.
    pub fn forget(&self, key: &Key) {
        let Key { namespace, name } = key;
        self.0.compaction.forget(key);
        self.0.protection.forget(key);
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
    fn series_of_a_cluster_go_with_it() {
        let metrics = Metrics::new().unwrap();
        let key = Key {
            namespace: "shoot".to_owned(),
            name: "main".to_owned(),
        };
        let before = metrics.render().unwrap();
        metrics.told(
            &key,
            3,
            &EtcdStatus {
                observed_generation: Some(1),
                ..EtcdStatus::default()
            },
        );
        let told = metrics.render().unwrap();
        assert!(
            told.contains(r#"mainstay_etcd_generation_lag{etcd="main",namespace="shoot"} 2"#),
            "{told}"
        );
        metrics.forget(&key);
        assert_eq!(metrics.render().unwrap(), before);
    }

    fn ready(status: &str, reason: &str) -> EtcdStatus {
        let status = serde_json::json!({ "conditions": [{
            "type": "Ready", "status": status, "reason": reason, "message": "",
            "lastUpdateTime": "2026-11-16T12:00:00Z", "lastTransitionTime": "2026-11-16T12:00:00Z",
        }] });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn what_is_not_checked_or_not_said_any_more_is_not_told() {
        const SERIES: &str =
            r#"mainstay_etcd_condition{etcd="main",namespace="shoot",type="Ready"}"#;
        let metrics = Metrics::new().unwrap();
        let key = Key {
            namespace: "shoot".to_owned(),
            name: "main".to_owned(),
        };
        let told = |status: &EtcdStatus| {
            metrics.told(&key, 1, status);
            let text = metrics.render().unwrap();
            let value = text.lines().find_map(|line| line.strip_prefix(SERIES));
            value.map(|value| value.trim().to_owned())
        };
        let is = |value: &str| Some(value.to_owned());
        assert_eq!(told(&ready("Unknown", "NoMembersInStatus")), is("-1"));
        assert_eq!(told(&ready("False", "QuorumLost")), is("0"));
        assert_eq!(told(&ready("False", NOT_CHECKED)), None, "it sleeps");
        assert_eq!(told(&ready("True", "Quorate")), is("1"), "it wakes");
        assert_eq!(told(&EtcdStatus::default()), None, "nobody says it");
    }

    const BEGIN: &str = "<!-- begin: from the registry -->\n";
    const END: &str = "<!-- end: from the registry -->";

    /// The table of the page, as the registry has it once everything has happened to one cluster.
    fn table(metrics: &Metrics) -> String {
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
    fn the_table_of_metrics_is_what_the_registry_has() {
        let metrics = Metrics::new().unwrap();
        let key = Key {
            namespace: "shoot".to_owned(),
            name: "main".to_owned(),
        };
        metrics.told(&key, 1, &ready("True", "Quorate"));
        let done = JobState::Succeeded {
            at: jiff::Timestamp::UNIX_EPOCH,
            done: mainstay_verdict::Done::default(),
        };
        metrics.compacted(&key, &done, Some(Duration::from_secs(1)));
        metrics.compacting(&key, 0);
        metrics.delta_events(&key, Some(0));
        metrics.fell_back(&key, true);
        metrics.drilled(&key, true);
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/controller.md");
        let text = fs::read_to_string(&page).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let wanted = format!("{before}{BEGIN}\n{}\n{END}{after}", table(&metrics));
        if std::env::var_os("MAINSTAY_UPDATE_DOCS").is_some() {
            fs::write(&page, &wanted).unwrap();
        } else {
            assert!(
                text == wanted,
                "docs/reference/controller.md is stale: MAINSTAY_UPDATE_DOCS=1 cargo nextest run -p mainstay-controller metrics"
            );
        }
    }

    #[test]
    fn tasks_are_counted_from_zero() {
        let text = Metrics::new().unwrap().render().unwrap();
        for series in [
            r#"mainstay_tasks_total{kind="restore",state="Failed"} 0"#,
            r#"mainstay_tasks_total{kind="copyBackups",state="Succeeded"} 0"#,
        ] {
            assert!(text.contains(series), "{series}");
        }
    }

    #[test]
    fn every_word_of_a_step_is_known_before_it_is_taken() {
        let metrics = Metrics::new().unwrap();
        let text = metrics.render().unwrap();
        for word in Step::WORDS {
            assert!(text.contains(&format!("step=\"{word}\"")), "{word}");
        }
    }
}
