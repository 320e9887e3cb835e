//! The registry as a whole: complete, bounded, documented.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use mainstay_archive::compression::Compression;
use mainstay_archive::name::SnapshotName;
use prometheus::proto::MetricType;

use super::*;

/// Marks around the part of the page that is made from the registry.
const BEGIN: &str = "<!-- begin: from the registry -->\n";
const END: &str = "<!-- end: from the registry -->\n";

/// Series of the rendered text whose name begins so, and their values as written.
fn samples(metrics: &Metrics, name: &str) -> BTreeMap<String, String> {
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

fn value(metrics: &Metrics, series: &str) -> String {
    samples(metrics, series)[series].clone()
}

/// Does everything that can be done, with every label there is.
fn busy() -> Metrics {
    let metrics = Metrics::new().unwrap();
    for succeeded in [true, false] {
        for kind in labels::KINDS {
            metrics.snapshot_finished(kind, succeeded, 400.0);
            metrics.snapshot_required(kind, succeeded);
        }
        for what in Collected::ALL {
            metrics.collected(what, succeeded);
        }
        for lease in LeaseKind::ALL {
            metrics.lease_updated(lease, succeeded);
        }
        metrics.defragmented(succeeded, 1.0);
        metrics.promoted(succeeded, 1.0);
        metrics.learner(succeeded);
    }
    for standing in Standing::ALL {
        metrics.election_changed(standing);
    }
    for cause in GapCause::ALL {
        metrics.gap(cause);
    }
    for route in ROUTES {
        for status in [100, 200, 304, 404, 405, 500, 503, 999] {
            metrics.http_request(route, status);
        }
    }
    for class in FAILURES {
        metrics.snapshotter_failed(class);
    }
    for kind in ALARMS {
        metrics.alarm(kind, true);
    }
    metrics.http_refused();
    metrics
}

#[test]
fn whatever_happens_no_series_appears_that_was_not_there_at_zero() {
    let names = |metrics: &Metrics| samples(metrics, "").into_keys().collect::<BTreeSet<_>>();
    let (fresh, used) = (names(&Metrics::new().unwrap()), names(&busy()));
    assert_eq!(fresh, used);
    assert!(fresh.len() < 400, "{} series", fresh.len());
}

#[test]
fn a_stored_snapshot_is_told_by_revision_time_and_size() {
    let metrics = Metrics::new().unwrap();
    let stored = Stored {
        name: SnapshotName::delta(Revision(5), Revision(9), 1_794_795_243, Compression::Gzip),
        key: "v2/Incr-00000005-00000009-1794795243.gz".to_owned(),
        size: 10,
    };
    metrics.snapshot_stored(&stored, 40);
    metrics.snapshot_stored(&stored, 40);
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
        assert_eq!(value(&metrics, series), expected, "{series}");
    }
}

#[test]
fn a_snapshot_of_minutes_falls_into_a_bucket_of_minutes() {
    let metrics = Metrics::new().unwrap();
    metrics.snapshot_finished(Kind::Full, true, 400.0);
    let bucket = |limit: &str| {
        let labels = format!("{{kind=\"Full\",succeeded=\"true\",le=\"{limit}\"}}");
        value(
            &metrics,
            &format!("etcdbr_snapshot_duration_seconds_bucket{labels}"),
        )
    };
    assert_eq!((bucket("300"), bucket("600")), ("0".into(), "1".into()));
}

#[test]
fn exactly_one_role_is_held() {
    let metrics = Metrics::new().unwrap();
    for standing in Standing::ALL {
        metrics.standing(standing);
        let held = samples(&metrics, "mainstay_role{");
        let mine = format!("mainstay_role{{role=\"{}\"}}", standing.word());
        let ones = held.iter().filter(|(_, value)| *value == "1");
        let ones: Vec<_> = ones.map(|(series, _)| series.as_str()).collect();
        assert_eq!(ones, [mine.as_str()]);
    }
}

#[test]
fn a_former_leader_tells_nothing_of_a_capture_that_has_ended() {
    const OF_LEADERS: [&str; 4] = [
        "mainstay_watch_lag_revisions",
        "mainstay_watch_lag_seconds",
        "mainstay_delta_buffer_bytes",
        "mainstay_damaged_objects",
    ];
    for (standing, expected) in [
        (Standing::Leader, ["7", "90", "1024", "2"]),
        (Standing::Follower, ["0"; 4]),
        (Standing::Learner, ["0"; 4]),
        (Standing::Unknown, ["0", "0", "0", "2"]),
    ] {
        let metrics = Metrics::new().unwrap();
        metrics.standing(Standing::Leader);
        metrics.watch_lag(7, 90.0);
        metrics.buffer_bytes(1024);
        metrics.damaged_objects(2);
        metrics.standing(standing);
        let told = OF_LEADERS.map(|series| value(&metrics, series));
        assert_eq!(told, expected, "{}", standing.word());
    }
}

#[test]
fn clones_share_their_values() {
    let metrics = Metrics::new().unwrap();
    metrics.clone().gap(GapCause::Compacted);
    assert_eq!(
        value(&metrics, "mainstay_gaps_total{cause=\"compacted\"}"),
        "1"
    );
}

/// The table of the page, as the registry has it.
fn table(metrics: &Metrics) -> String {
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
fn the_page_of_metrics_is_what_the_registry_has() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let table = table(&Metrics::new().unwrap());
    let wanted = format!("{before}{BEGIN}\n{table}\n{END}{after}");
    if std::env::var_os("MAINSTAY_UPDATE_DOCS").is_some() {
        std::fs::write(&page, &wanted).unwrap();
    } else {
        assert!(
            text == wanted,
            "docs/reference/metrics.md is stale: MAINSTAY_UPDATE_DOCS=1 cargo nextest run -p mainstay-sidecar metrics"
        );
    }
}

/// Tests that need a program of `make setup`.
mod live {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// Names of the peer that break a convention promtool checks: kept, because dashboards read them.
    const INHERITED: [&str; 5] = [
        "etcdbr_network_received_bytes",
        "etcdbr_network_transmitted_bytes",
        "etcdbr_snapshotter_failure",
        "etcdbr_snapstore_latest_deltas_revisions_total",
        "etcdbr_snapstore_latest_deltas_total",
    ];

    fn promtool() -> PathBuf {
        match std::env::var_os("MAINSTAY_PROMTOOL").map(PathBuf::from) {
            Some(path) if path.is_file() => path,
            Some(path) => panic!(
                "MAINSTAY_PROMTOOL is {}, no file; run `make setup`",
                path.display()
            ),
            None => {
                panic!("MAINSTAY_PROMTOOL is not set; run `make test`, which installs promtool")
            }
        }
    }

    /// What promtool says about a text, one finding a line; empty when it is content.
    fn findings(text: &str) -> String {
        let mut child = Command::new(promtool())
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
        // 0: content; 3: findings; anything else: it could not read the text.
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 3)), "{output:?}");
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8(said).unwrap()
    }

    #[test]
    fn promtool_objects_to_nothing_but_inherited_names() {
        let text = busy().render().unwrap();
        let said = findings(&text);
        let about = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        let names: BTreeSet<_> = said.lines().map(about).collect();
        let expected: BTreeSet<_> = INHERITED.map(str::to_owned).into();
        assert_eq!(names, expected, "{said}");
    }

    #[test]
    fn promtool_does_object_to_a_bad_name() {
        let said = findings("# TYPE requests counter\nrequests 1\n");
        assert!(said.contains("requests"), "{said}");
    }
}
