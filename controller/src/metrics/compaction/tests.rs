use jiff::Timestamp;
use mainstay_verdict::Done;
use prometheus::TextEncoder;

use super::*;
use crate::observe::JobFailure;

const MOST: &str = "etcddruid_compaction_num_delta_events";

struct Measured {
    registry: Registry,
    compaction: Compaction,
}

impl Measured {
    fn new() -> Self {
        let registry = Registry::new();
        let compaction = Compaction::register(&registry).unwrap();
        Self {
            registry,
            compaction,
        }
    }

    fn text(&self) -> String {
        let families = self.registry.gather();
        TextEncoder::new().encode_to_string(&families).unwrap()
    }

    /// What a series of a namespace says, if it is there.
    fn value(&self, name: &str, namespace: &str) -> Option<i64> {
        let series = format!("{name}{{etcd_namespace=\"{namespace}\"}} ");
        let text = self.text();
        let mut values = text.lines().filter_map(|line| line.strip_prefix(&series));
        values.next().map(|value| value.parse().unwrap())
    }
}

fn key(namespace: &str, name: &str) -> Key {
    Key {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

#[test]
fn a_namespace_shows_the_etcd_with_most_changes_whoever_was_looked_at_last() {
    let measured = Measured::new();
    let (main, events, other) = (key("a", "main"), key("a", "events"), key("b", "main"));
    measured.compaction.delta_events(&main, Some(70));
    measured.compaction.delta_events(&events, Some(5));
    measured.compaction.delta_events(&other, Some(3));
    assert_eq!(measured.value(MOST, "a"), Some(70));
    assert_eq!(measured.value(MOST, "b"), Some(3));

    measured.compaction.delta_events(&main, Some(2)); // a full snapshot was taken
    assert_eq!(measured.value(MOST, "a"), Some(5));
    measured.compaction.delta_events(&events, None);
    assert_eq!(measured.value(MOST, "a"), Some(2));
    measured.compaction.delta_events(&main, None);
    assert_eq!(measured.value(MOST, "a"), None, "nobody knows");
    assert_eq!(measured.value(MOST, "b"), Some(3));
}

#[test]
fn an_etcd_that_is_gone_does_not_count() {
    let measured = Measured::new();
    let (main, events) = (key("a", "main"), key("a", "events"));
    measured.compaction.delta_events(&main, Some(70));
    measured.compaction.delta_events(&events, Some(5));
    measured.compaction.running(&main, 1);
    measured.compaction.forget(&main);
    assert_eq!(measured.value(MOST, "a"), Some(5));
    let running = measured.value("etcddruid_compaction_jobs_current", "a");
    assert_eq!(running, Some(1), "of a namespace that still has an Etcd");
}

/// Every way a Job ends.
fn ends() -> Vec<JobState> {
    let at = Timestamp::UNIX_EPOCH;
    let failed = FailureClass::ALL.map(|class| JobState::Failed {
        at,
        failure: JobFailure {
            class,
            verdict: None,
            overtaken_by: None,
            words: String::new(),
        },
    });
    let done = Done::default();
    [JobState::Succeeded { at, done }]
        .into_iter()
        .chain(failed)
        .collect()
}

#[test]
fn nothing_is_left_of_a_namespace_whose_last_etcd_is_gone() {
    let measured = Measured::new();
    let (main, without_backup) = (key("a", "main"), key("a", "events"));
    measured.compaction.is_there(&without_backup);
    measured.compaction.delta_events(&main, Some(70));
    measured.compaction.running(&main, 1);
    measured.compaction.fell_back(&main, true);
    measured.compaction.fell_back(&main, false);
    for end in ends() {
        let took = Some(Duration::from_secs(1));
        measured.compaction.ended(&main, &end, took);
    }
    measured.compaction.forget(&main);
    assert_eq!(measured.value(MOST, "a"), None, "the other has no backup");
    assert!(measured.text().contains("etcddruid_compaction_jobs_total{"));

    measured.compaction.forget(&without_backup);
    measured.compaction.fell_back(&main, true); // asked for before it went
    assert_eq!(measured.text(), "");
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
