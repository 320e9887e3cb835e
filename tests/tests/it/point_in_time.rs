//! Point-in-time restores: a target that is not restorable is refused with the restorable range.

use std::fs;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_testkit::recorder::{RecordedObject, RecorderCompression};
use mainstay_testkit::{EtcdOptions, EtcdRelease, EtcdServer, Recorder, Workload};
use tempfile::TempDir;

use crate::support::{EtcdState, RestorerBackup, start_etcd_on};

const VERSION: EtcdRelease = EtcdRelease::NEWEST;
const PREFIX: &str = "etcd-main";

/// A backup with known states and times.
struct TimedBackup {
    home: TempDir,
    fulls: [RecordedObject; 2],
    before: Timestamp,
    /// States, each with a time at which it was the newest.
    states: Vec<(Timestamp, EtcdState)>,
}

impl TimedBackup {
    /// Changes seconds apart, in three deltas and two bases.
    async fn create() -> Self {
        let etcd = EtcdServer::start(VERSION, EtcdOptions::new()).await;
        let home = TempDir::new().unwrap();
        let mut load = Workload::new(20_260_606);
        load.run(&etcd, 50).await;
        let before = quiet_moment().await;
        let container = RestorerBackup::container_dir(&home);
        let mut recorder =
            Recorder::start(&etcd, &container, PREFIX, RecorderCompression::Gzip).await;
        let first = only_full(&recorder);
        let mut states = Vec::new();
        for part in 0..3 {
            load.run(&etcd, 60).await;
            recorder.catch_up(&etcd).await;
            states.push((quiet_moment().await, EtcdState::read(&etcd).await));
            // A delta may contain several times. A new base starts at the end of a delta, otherwise there is a gap.
            if part > 0 {
                recorder.write_delta(&etcd).await.unwrap();
            }
        }
        let second = recorder.write_full(&etcd).await;
        load.run(&etcd, 60).await;
        recorder.catch_up(&etcd).await;
        states.push((quiet_moment().await, EtcdState::read(&etcd).await));
        recorder.write_delta(&etcd).await.unwrap();
        Self {
            home,
            fulls: [first, second],
            before,
            states,
        }
    }

    fn backup(&self) -> RestorerBackup {
        RestorerBackup::local(self.home.path(), PREFIX)
    }

    async fn assert_restores(&self, arguments: &[&str], expected: &EtcdState) {
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        let report = self.backup().restore(&data_dir, arguments);
        assert_eq!(
            report["revision"], expected.revision.0,
            "{arguments:?}: {report:#}"
        );
        let etcd = start_etcd_on(VERSION, &data_dir).await;
        expected
            .assert_restored(&etcd, &format!("{arguments:?}"))
            .await;
    }

    /// The reason of a refusal, which must not create the target.
    fn refusal_reason(&self, arguments: &[&str]) -> String {
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        let all = [&["--data-dir", data_dir.to_str().unwrap()], arguments].concat();
        let run = self.backup().run("restore", &all);
        let reason = run.expect_refused("incomplete", 21).to_owned();
        assert_eq!(
            directory.path().read_dir().unwrap().count(),
            0,
            "{arguments:?}"
        );
        reason
    }
}

fn only_full(recorder: &Recorder) -> RecordedObject {
    let mut entries = recorder.folder().read_dir().unwrap();
    let path = entries.next().unwrap().unwrap().path();
    RecordedObject {
        path,
        start_revision: mainstay_ids::Revision(0),
        last_revision: recorder.last_revision(),
        events: 0,
    }
}

/// A time without writes around it, longer than the resolution of object names.
async fn quiet_moment() -> Timestamp {
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let now = Timestamp::now();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    now
}

#[tokio::test]
async fn restore_to_a_time_yields_the_state_at_that_time() {
    let story = TimedBackup::create().await;
    for (moment, state) in &story.states {
        story
            .assert_restores(&["--to-time", &moment.to_string()], state)
            .await;
    }
}

#[tokio::test]
async fn every_base_restores_the_same_state() {
    let story = TimedBackup::create().await;
    let (_, last) = story.states.last().unwrap();
    for full in &story.fulls {
        story.assert_restores(&["--from", full.name()], last).await;
    }
    let (_, earlier) = &story.states[1];
    let [first, _] = &story.fulls;
    let revision = earlier.revision.to_string();
    story
        .assert_restores(
            &["--from", first.name(), "--to-revision", &revision],
            earlier,
        )
        .await;
}

#[tokio::test]
async fn refusal_names_the_restorable_range() {
    let story = TimedBackup::create().await;
    let [first, second] = &story.fulls;
    let (_, last) = story.states.last().unwrap();
    let range = format!("{} to {}", first.last_revision, last.revision);

    let beyond = (last.revision.0 + 1).to_string();
    let reason = story.refusal_reason(&["--to-revision", &beyond]);
    assert!(
        reason.contains(&beyond) && reason.contains(&range),
        "{reason}"
    );

    let too_old = (first.last_revision.0 - 1).to_string();
    let reason = story.refusal_reason(&["--to-revision", &too_old]);
    assert!(
        reason.contains(&too_old) && reason.contains(&range),
        "{reason}"
    );

    let reason = story.refusal_reason(&["--to-time", &story.before.to_string()]);
    assert!(reason.contains("restorable times: "), "{reason}");
    assert!(reason.contains(&story.before.to_string()), "{reason}");

    // The state after the last object is unknown.
    let tomorrow = (Timestamp::now() + Duration::from_hours(24)).to_string();
    let reason = story.refusal_reason(&["--to-time", &tomorrow]);
    assert!(
        reason.contains("restorable times: ") && reason.contains(&tomorrow),
        "{reason}"
    );

    let early = (second.last_revision.0 - 1).to_string();
    let reason = story.refusal_reason(&["--from", second.name(), "--to-revision", &early]);
    assert!(reason.contains(&early), "{reason}");

    let unknown = "Full-00000000-00000001-1700000000.gz";
    let reason = story.refusal_reason(&["--from", unknown]);
    assert!(reason.contains(unknown), "{reason}");
}

/// The name of a base has a resolution of one second: it may contain later changes of the same second.
#[tokio::test]
async fn base_taken_later_in_the_same_second_is_not_used() {
    let etcd = EtcdServer::start(VERSION, EtcdOptions::new()).await;
    let home = TempDir::new().unwrap();
    let container = RestorerBackup::container_dir(&home);
    let mut recorder = Recorder::start(&etcd, &container, PREFIX, RecorderCompression::Gzip).await;
    let mut load = Workload::new(20_260_616);
    load.run(&etcd, 50).await;
    recorder.catch_up(&etcd).await;
    quiet_moment().await;
    let (expected, moment) = (EtcdState::read(&etcd).await, wait_for_next_second().await);
    load.run(&etcd, 20).await;
    recorder.write_delta(&etcd).await.unwrap();
    let full = recorder.write_full(&etcd).await;
    // Renamed as if everything had happened within the second, also on a busy machine.
    let name = format!(
        "Full-{:08}-{:08}-{}.gz",
        0,
        full.last_revision.0,
        moment.as_second()
    );
    fs::rename(&full.path, full.path.with_file_name(name)).unwrap();
    wait_for_next_second().await;
    load.run(&etcd, 20).await;
    recorder.write_delta(&etcd).await.unwrap();
    let data_dir = home.path().join("data");
    let arguments = ["--to-time", &moment.to_string()];
    let report = RestorerBackup::local(home.path(), PREFIX).restore(&data_dir, &arguments);
    assert_eq!(report["revision"], expected.revision.0, "{report:#}");
}

/// Waits for the next second to begin.
async fn wait_for_next_second() -> Timestamp {
    let into = u64::try_from(Timestamp::now().subsec_nanosecond()).unwrap();
    tokio::time::sleep(Duration::from_nanos(1_000_000_000 - into)).await;
    let now = Timestamp::now();
    tokio::time::sleep(Duration::from_millis(50)).await;
    now
}
