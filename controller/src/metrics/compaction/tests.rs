use jiff::Timestamp;
use mainstay_verdict::CommandDetails;
use prometheus::TextEncoder;

use super::*;
use crate::model::{EtcdKey, FailureClass, JobFailure, JobState};

const DELTA_EVENTS: &str = "etcddruid_compaction_num_delta_events";

struct TestMetrics {
    registry: Registry,
    compaction: CompactionMetrics,
}

impl TestMetrics {
    fn new() -> Self {
        let registry = Registry::new();
        let compaction = CompactionMetrics::register(&registry).unwrap();
        Self {
            registry,
            compaction,
        }
    }

    fn render(&self) -> String {
        let families = self.registry.gather();
        TextEncoder::new().encode_to_string(&families).unwrap()
    }

    /// Value of a gauge; `None` without the series.
    fn read_gauge(&self, name: &str, namespace: &str) -> Option<i64> {
        let series = format!("{name}{{etcd_namespace=\"{namespace}\"}} ");
        let text = self.render();
        let mut values = text.lines().filter_map(|line| line.strip_prefix(&series));
        values.next().map(|value| value.parse().unwrap())
    }
}

fn key(namespace: &str, name: &str) -> EtcdKey {
    EtcdKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

#[test]
fn namespace_gauge_shows_the_etcd_with_the_most_events() {
    let metrics = TestMetrics::new();
    let (main, events, other) = (key("a", "main"), key("a", "events"), key("b", "main"));
    metrics.compaction.set_delta_events(&main, Some(70));
    metrics.compaction.set_delta_events(&events, Some(5));
    metrics.compaction.set_delta_events(&other, Some(3));
    assert_eq!(metrics.read_gauge(DELTA_EVENTS, "a"), Some(70));
    assert_eq!(metrics.read_gauge(DELTA_EVENTS, "b"), Some(3));

    metrics.compaction.set_delta_events(&main, Some(2)); // a full snapshot was taken
    assert_eq!(metrics.read_gauge(DELTA_EVENTS, "a"), Some(5));
    metrics.compaction.set_delta_events(&events, None);
    assert_eq!(metrics.read_gauge(DELTA_EVENTS, "a"), Some(2));
    metrics.compaction.set_delta_events(&main, None);
    assert_eq!(metrics.read_gauge(DELTA_EVENTS, "a"), None, "all unknown");
    assert_eq!(metrics.read_gauge(DELTA_EVENTS, "b"), Some(3));
}

#[test]
fn deleted_etcd_does_not_count() {
    let metrics = TestMetrics::new();
    let (main, events) = (key("a", "main"), key("a", "events"));
    metrics.compaction.set_delta_events(&main, Some(70));
    metrics.compaction.set_delta_events(&events, Some(5));
    metrics.compaction.set_running(&main, 1);
    metrics.compaction.remove_etcd(&main);
    assert_eq!(metrics.read_gauge(DELTA_EVENTS, "a"), Some(5));
    let running = metrics.read_gauge("etcddruid_compaction_jobs_current", "a");
    assert_eq!(running, Some(1), "the namespace still has an Etcd");
}

/// Every final state of a Job.
fn list_end_states() -> Vec<JobState> {
    let at = Timestamp::UNIX_EPOCH;
    let failed = FailureClass::ALL.map(|class| JobState::Failed {
        at,
        failure: JobFailure {
            class,
            verdict: None,
            superseded_by: None,
            message: String::new(),
        },
    });
    let done = CommandDetails::default();
    [JobState::Succeeded { at, done }]
        .into_iter()
        .chain(failed)
        .collect()
}

#[test]
fn namespace_without_an_etcd_has_no_series() {
    let metrics = TestMetrics::new();
    let (main, without_backup) = (key("a", "main"), key("a", "events"));
    metrics.compaction.add_etcd(&without_backup);
    metrics.compaction.set_delta_events(&main, Some(70));
    metrics.compaction.set_running(&main, 1);
    metrics.compaction.record_fallback_snapshot(&main, true);
    metrics.compaction.record_fallback_snapshot(&main, false);
    for end in list_end_states() {
        let duration = Some(Duration::from_secs(1));
        metrics.compaction.record_job_end(&main, &end, duration);
    }
    metrics.compaction.remove_etcd(&main);
    assert_eq!(
        metrics.read_gauge(DELTA_EVENTS, "a"),
        None,
        "the other Etcd has no backup"
    );
    assert!(
        metrics
            .render()
            .contains("etcddruid_compaction_jobs_total{")
    );

    metrics.compaction.remove_etcd(&without_backup);
    metrics.compaction.record_fallback_snapshot(&main, true); // requested before the deletion
    assert_eq!(metrics.render(), "");
    assert!(metrics.compaction.lock().is_empty());
}

#[test]
fn every_failure_has_a_label_of_the_etcd_druid_dashboards() {
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
