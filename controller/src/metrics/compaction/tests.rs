use jiff::Timestamp;
use mainstay_verdict::CommandDetails;
use prometheus::TextEncoder;

use super::*;
use crate::observe::JobFailure;

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

    /// What a series of a namespace says, if it is there.
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
fn a_namespace_shows_the_etcd_with_most_changes_whoever_was_looked_at_last() {
    let measured = TestMetrics::new();
    let (main, events, other) = (key("a", "main"), key("a", "events"), key("b", "main"));
    measured.compaction.set_delta_events(&main, Some(70));
    measured.compaction.set_delta_events(&events, Some(5));
    measured.compaction.set_delta_events(&other, Some(3));
    assert_eq!(measured.read_gauge(DELTA_EVENTS, "a"), Some(70));
    assert_eq!(measured.read_gauge(DELTA_EVENTS, "b"), Some(3));

    measured.compaction.set_delta_events(&main, Some(2)); // a full snapshot was taken
    assert_eq!(measured.read_gauge(DELTA_EVENTS, "a"), Some(5));
    measured.compaction.set_delta_events(&events, None);
    assert_eq!(measured.read_gauge(DELTA_EVENTS, "a"), Some(2));
    measured.compaction.set_delta_events(&main, None);
    assert_eq!(measured.read_gauge(DELTA_EVENTS, "a"), None, "nobody knows");
    assert_eq!(measured.read_gauge(DELTA_EVENTS, "b"), Some(3));
}

#[test]
fn an_etcd_that_is_gone_does_not_count() {
    let measured = TestMetrics::new();
    let (main, events) = (key("a", "main"), key("a", "events"));
    measured.compaction.set_delta_events(&main, Some(70));
    measured.compaction.set_delta_events(&events, Some(5));
    measured.compaction.set_running(&main, 1);
    measured.compaction.remove_etcd(&main);
    assert_eq!(measured.read_gauge(DELTA_EVENTS, "a"), Some(5));
    let running = measured.read_gauge("etcddruid_compaction_jobs_current", "a");
    assert_eq!(running, Some(1), "of a namespace that still has an Etcd");
}

/// Every way a Job ends.
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
fn nothing_is_left_of_a_namespace_whose_last_etcd_is_gone() {
    let measured = TestMetrics::new();
    let (main, without_backup) = (key("a", "main"), key("a", "events"));
    measured.compaction.add_etcd(&without_backup);
    measured.compaction.set_delta_events(&main, Some(70));
    measured.compaction.set_running(&main, 1);
    measured.compaction.record_fallback_snapshot(&main, true);
    measured.compaction.record_fallback_snapshot(&main, false);
    for end in list_end_states() {
        let took = Some(Duration::from_secs(1));
        measured.compaction.record_job_end(&main, &end, took);
    }
    measured.compaction.remove_etcd(&main);
    assert_eq!(measured.read_gauge(DELTA_EVENTS, "a"), None, "the other has no backup");
    assert!(measured.render().contains("etcddruid_compaction_jobs_total{"));

    measured.compaction.remove_etcd(&without_backup);
    measured.compaction.record_fallback_snapshot(&main, true); // asked for before it went
    assert_eq!(measured.render(), "");
    assert!(measured.compaction.lock().is_empty());
}

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
