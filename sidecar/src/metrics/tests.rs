//! Tests of the whole registry: complete, bounded, documented.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use mainstay_archive::compression::Compression;
use mainstay_archive::name::SnapshotName;
use prometheus::proto::MetricType;

use super::labels::{ALARM_KINDS, FAILURE_CLASSES};
use super::*;

/// Marks around the generated part of the page.
const BEGIN: &str = "<!-- begin: from the registry -->\n";
const END: &str = "<!-- end: from the registry -->\n";

/// Rendered series whose name starts with `name`, and their values.
fn read_samples(metrics: &SidecarMetrics, name: &str) -> BTreeMap<String, String> {
    let text = metrics.render().unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.to_owned())
    };
    lines
        .filter(|line| line.starts_with(name))
        .map(sample)
        .collect()
}

fn read_value(metrics: &SidecarMetrics, series: &str) -> String {
    read_samples(metrics, series)[series].clone()
}

/// Metrics after every recording, with every label value.
fn exercised_metrics() -> SidecarMetrics {
    let metrics = SidecarMetrics::new().unwrap();
    for succeeded in [true, false] {
        for kind in labels::SNAPSHOT_KINDS {
            metrics.record_snapshot(kind, succeeded, 400.0);
            metrics.set_required(kind, succeeded);
        }
        for what in GarbageLabel::ALL {
            metrics.count_garbage_collected(what, succeeded);
        }
        for lease in LeaseKind::ALL {
            metrics.count_lease_update(lease, succeeded);
        }
        metrics.observe_defragmentation(succeeded, 1.0);
        metrics.observe_promotion(succeeded, 1.0);
        metrics.set_learner(succeeded);
    }
    for standing in SidecarRole::ALL {
        metrics.record_role_change(standing);
    }
    for cause in GapCause::ALL {
        metrics.count_gap(cause);
    }
    for route in ROUTES {
        for status in [100, 200, 304, 404, 405, 500, 503, 999] {
            metrics.count_http_request(route, status);
        }
    }
    for class in FAILURE_CLASSES {
        metrics.count_failure(class);
    }
    for kind in ALARM_KINDS {
        metrics.set_alarm(kind, true);
    }
    metrics.count_refused_connection();
    metrics
}

#[test]
fn every_series_exists_from_the_start() {
    let names = |metrics: &SidecarMetrics| {
        read_samples(metrics, "")
            .into_keys()
            .collect::<BTreeSet<_>>()
    };
    let (fresh, used) = (
        names(&SidecarMetrics::new().unwrap()),
        names(&exercised_metrics()),
    );
    assert_eq!(fresh, used);
    assert!(fresh.len() < 400, "{} series", fresh.len());
}

#[test]
fn stored_snapshot_updates_revision_time_and_size() {
    let metrics = SidecarMetrics::new().unwrap();
    let stored = StoredSnapshot {
        name: SnapshotName::delta(Revision(5), Revision(9), 1_794_795_243, Compression::Gzip),
        key: "v2/Incr-00000005-00000009-1794795243.gz".to_owned(),
        size: 10,
    };
    metrics.record_stored(&stored, 40);
    metrics.record_stored(&stored, 40);
    for (series, expected) in [
        ("etcdbr_snapshot_latest_revision{kind=\"Incr\"}", "9"),
        (
            "etcdbr_snapshot_latest_timestamp{kind=\"Incr\"}",
            "1794795243",
        ),
        ("etcdbr_snapshot_latest_revision{kind=\"Full\"}", "0"),
        ("mainstay_snapshot_raw_bytes_total{kind=\"Incr\"}", "80"),
        ("mainstay_snapshot_stored_bytes_total{kind=\"Incr\"}", "20"),
        ("mainstay_snapshot_latest_stored_bytes{kind=\"Incr\"}", "10"),
    ] {
        assert_eq!(read_value(&metrics, series), expected, "{series}");
    }
}

#[test]
fn duration_buckets_cover_snapshots_of_several_minutes() {
    let metrics = SidecarMetrics::new().unwrap();
    metrics.record_snapshot(SnapshotKind::Full, true, 400.0);
    let bucket = |limit: &str| {
        let labels = format!("{{kind=\"Full\",succeeded=\"true\",le=\"{limit}\"}}");
        read_value(
            &metrics,
            &format!("etcdbr_snapshot_duration_seconds_bucket{labels}"),
        )
    };
    assert_eq!((bucket("300"), bucket("600")), ("0".into(), "1".into()));
}

#[test]
fn exactly_one_role_is_set() {
    let metrics = SidecarMetrics::new().unwrap();
    for standing in SidecarRole::ALL {
        metrics.set_role(standing);
        let held = read_samples(&metrics, "mainstay_role{");
        let mine = format!("mainstay_role{{role=\"{}\"}}", standing.as_str());
        let ones = held.iter().filter(|(_, value)| *value == "1");
        let ones: Vec<_> = ones.map(|(series, _)| series.as_str()).collect();
        assert_eq!(ones, [mine.as_str()]);
    }
}

#[test]
fn former_leader_resets_its_capture_metrics() {
    const LEADER_METRICS: [&str; 4] = [
        "mainstay_watch_lag_revisions",
        "mainstay_watch_lag_seconds",
        "mainstay_delta_buffer_bytes",
        "mainstay_damaged_objects",
    ];
    for (standing, expected) in [
        (SidecarRole::Leader, ["7", "90", "1024", "2"]),
        (SidecarRole::Follower, ["0"; 4]),
        (SidecarRole::Learner, ["0"; 4]),
        (SidecarRole::Unknown, ["0", "0", "0", "2"]),
    ] {
        let metrics = SidecarMetrics::new().unwrap();
        metrics.set_role(SidecarRole::Leader);
        metrics.set_watch_lag(7, 90.0);
        metrics.set_buffer_bytes(1024);
        metrics.set_damaged_objects(2);
        metrics.set_role(standing);
        let reported = LEADER_METRICS.map(|series| read_value(&metrics, series));
        assert_eq!(reported, expected, "{}", standing.as_str());
    }
}

#[test]
fn clones_share_their_values() {
    let metrics = SidecarMetrics::new().unwrap();
    metrics.clone().count_gap(GapCause::Compacted);
    assert_eq!(
        read_value(&metrics, "mainstay_gaps_total{cause=\"compacted\"}"),
        "1"
    );
}

/// The table of the page, generated from the registry.
fn render_table(metrics: &SidecarMetrics) -> String {
    let mut table = "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for family in metrics.registry.gather() {
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
fn metrics_page_matches_the_registry() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let table = render_table(&SidecarMetrics::new().unwrap());
    let expected = format!("{before}{BEGIN}\n{table}\n{END}{after}");
    if std::env::var_os("MAINSTAY_UPDATE_DOCS").is_some() {
        std::fs::write(&page, &expected).unwrap();
    } else {
        assert!(
            text == expected,
            "docs/reference/metrics.md is stale: MAINSTAY_UPDATE_DOCS=1 cargo nextest run -p mainstay-sidecar metrics"
        );
    }
}

/// Tests that need a program of `make setup`.
mod live {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// Names of etcd-backup-restore that break a naming convention; kept because dashboards read them.
    const UPSTREAM_NAMES: [&str; 5] = [
        "etcdbr_network_received_bytes",
        "etcdbr_network_transmitted_bytes",
        "etcdbr_snapshotter_failure",
        "etcdbr_snapstore_latest_deltas_revisions_total",
        "etcdbr_snapstore_latest_deltas_total",
    ];

    fn promtool_path() -> PathBuf {
        match std::env::var_os("MAINSTAY_PROMTOOL").map(PathBuf::from) {
            Some(path) if path.is_file() => path,
            Some(path) => panic!(
                "MAINSTAY_PROMTOOL is {}, which is not a file; run `make setup`",
                path.display()
            ),
            None => {
                panic!("MAINSTAY_PROMTOOL is not set; run `make test`, which installs promtool")
            }
        }
    }

    /// Findings of promtool, one per line; empty if there are none.
    fn run_promtool(text: &str) -> String {
        let mut child = Command::new(promtool_path())
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        // 0: no findings; 3: findings; any other code: promtool could not read the text.
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 3)), "{output:?}");
        let output_text = [output.stdout, output.stderr].concat();
        String::from_utf8(output_text).unwrap()
    }

    #[test]
    fn promtool_reports_only_names_inherited_from_upstream() {
        let text = exercised_metrics().render().unwrap();
        let output_text = run_promtool(&text);
        let metric_name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        let names: BTreeSet<_> = output_text.lines().map(metric_name).collect();
        let expected: BTreeSet<_> = UPSTREAM_NAMES.map(str::to_owned).into();
        assert_eq!(names, expected, "{output_text}");
    }

    #[test]
    fn promtool_reports_a_bad_name() {
        let output_text = run_promtool("# TYPE requests counter\nrequests 1\n");
        assert!(output_text.contains("requests"), "{output_text}");
    }
}
