//! A restore is atomic: after a crash, the target is either the complete old directory or the complete new one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainstay_testkit::recorder::RecorderCompression;
use mainstay_testkit::{EtcdOptions, EtcdRelease, EtcdServer, Recorder, Workload};
use tempfile::TempDir;

use crate::support::{EtcdState, FileTree, Fixture, RestorerBackup, RestorerRun, start_etcd_on};

const VERSION: EtcdRelease = EtcdRelease::NEWEST;
const PREFIX: &str = "etcd-main";
/// Exists in a directory until its swap is complete.
const RESTORE_MARKER: &str = ".mainstay-restoring";
/// A fixed token makes restores byte-identical.
const TOKEN_ARGS: [&str; 2] = ["--initial-cluster-token", "the-same-every-time"];

/// A backup that takes a while to restore, and a target directory.
struct CrashScenario {
    home: TempDir,
    source: EtcdState,
    target_parent: TempDir,
    old: FileTree,
    new: FileTree,
    duration: Duration,
}

impl CrashScenario {
    async fn create(size: BackupSize) -> Self {
        let home = TempDir::new().unwrap();
        let source = create_backup(&home, size).await;
        let target_parent = TempDir::new().unwrap();
        let mut scene = Self {
            home,
            source,
            old: FileTree::default(),
            new: FileTree::default(),
            duration: Duration::ZERO,
            target_parent,
        };
        let started = Instant::now();
        scene.backup().restore(&scene.target(), &TOKEN_ARGS);
        scene.duration = started.elapsed();
        scene.new = FileTree::read(&scene.target()).unwrap();
        fs::remove_dir_all(scene.target()).unwrap();
        Fixture::open("gzip-3.5.30")
            .backup()
            .restore(&scene.target(), &[]);
        scene.old = FileTree::read(&scene.target()).unwrap();
        scene
    }

    fn backup(&self) -> RestorerBackup {
        RestorerBackup::local(self.home.path(), PREFIX)
    }

    fn target(&self) -> PathBuf {
        self.target_parent.path().join("target")
    }

    /// Starts a restore over the target and kills it after a while.
    async fn kill_restore_after(&self, moment: Duration) {
        let target = self.target();
        let all = [&["--data-dir", target.to_str().unwrap()], &TOKEN_ARGS[..]].concat();
        let mut command = self.backup().command("restore", &all);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        tokio::time::sleep(moment).await;
        kill(&mut child);
    }

    /// Whether the target is the old or the new directory; it must equal one of them byte for byte.
    fn read_target(&self, context: &str) -> TargetContent {
        let mut found = FileTree::read(&self.target()).unwrap_or_default();
        found.0.remove(Path::new(RESTORE_MARKER));
        match found {
            found if found.0.is_empty() => TargetContent::Missing,
            found if found == self.old => TargetContent::Old,
            found if found == self.new => TargetContent::New,
            found => panic!("{context}: the target is neither old nor new: {found:#?}"),
        }
    }

    /// All entries next to the target.
    fn siblings(&self) -> Vec<PathBuf> {
        let entries = self.target_parent.path().read_dir().unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| *path != self.target()).collect()
    }

    /// Repeats the restore: the new directory is in place, the old one is kept, nothing else is left.
    fn rerun(&self, context: &str) {
        self.backup().restore(&self.target(), &TOKEN_ARGS);
        assert_eq!(
            FileTree::read(&self.target()).as_ref(),
            Some(&self.new),
            "{context}"
        );
        for sibling in self.siblings() {
            let name = sibling.file_name().unwrap().to_str().unwrap();
            assert!(
                name.starts_with("target.before-"),
                "{context}: leftover {name}"
            );
        }
    }

    /// Moves the kept old directory back to the target.
    fn reset_to_old(&self, context: &str) {
        fs::remove_dir_all(self.target()).unwrap();
        let (kept, others): (Vec<_>, Vec<_>) = self
            .siblings()
            .into_iter()
            .partition(|path| FileTree::read(path).as_ref() == Some(&self.old));
        let [kept] = kept.as_slice() else {
            panic!("{context}: expected exactly one previous directory, found {kept:?}")
        };
        fs::rename(kept, self.target()).unwrap();
        for other in others {
            fs::remove_dir_all(other).unwrap();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetContent {
    Missing,
    Old,
    New,
}

/// Sizes of the base and of the deltas, incompressible, so that a restore takes a while.
type BackupSize = (usize, usize);

const SMALL: BackupSize = (10 << 20, 6 << 20);
const LARGE: BackupSize = (40 << 20, 24 << 20);

async fn create_backup(home: &TempDir, (base, deltas): BackupSize) -> EtcdState {
    let etcd = EtcdServer::start(VERSION, EtcdOptions::new().huge_transactions()).await;
    let mut load = Workload::new(20_260_707);
    load.run_huge_transaction(&etcd, 2_000, base).await;
    let container = RestorerBackup::container_dir(home);
    let mut recorder = Recorder::start(&etcd, &container, PREFIX, RecorderCompression::None).await;
    load.run_huge_transaction(&etcd, 2_000, deltas).await;
    load.run(&etcd, 200).await;
    recorder.write_delta(&etcd).await.unwrap();
    EtcdState::read(&etcd).await
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Fractions of a restore's duration: start, middle, and around the end, where the directories are swapped.
const KILL_FRACTIONS: [f64; 5] = [0.0, 0.5, 0.9, 0.97, 1.05];
/// Eighths of the disk space that a restore needs.
const DISK_EIGHTHS: [u64; 3] = [0, 4, 7];

#[tokio::test]
async fn killed_restore_leaves_the_old_or_the_new_directory() {
    check_killed_restores(SMALL, &KILL_FRACTIONS).await;
}

#[tokio::test]
async fn killed_restore_to_a_new_path_leaves_nothing_or_everything() {
    check_killed_new_restores(SMALL, &KILL_FRACTIONS[1..4]).await;
}

#[tokio::test]
async fn full_disk_leaves_the_target_unchanged() {
    check_full_disk(&DISK_EIGHTHS).await;
}

/// The same at many more moments.
mod soak {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Spread over the whole restore, and as many around its end.
    fn random_fractions(seed: u64, count: usize) -> Vec<f64> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut draw = |parts: std::ops::Range<f64>| random.random_range(parts);
        let part = |number| match number % 2 {
            0 => draw(0.0..1.1),
            _ => draw(0.85..1.1),
        };
        (0..count).map(part).collect()
    }

    #[tokio::test]
    async fn restore_killed_at_any_time_leaves_the_old_or_the_new_directory() {
        check_killed_restores(LARGE, &random_fractions(20_260_808, 24)).await;
    }

    #[tokio::test]
    async fn new_restore_killed_at_any_time_leaves_nothing_or_everything() {
        check_killed_new_restores(LARGE, &random_fractions(20_260_909, 8)).await;
    }

    #[tokio::test]
    async fn disk_that_is_full_at_any_step_leaves_the_target_unchanged() {
        check_full_disk(&[0, 1, 2, 3, 4, 5, 6, 7]).await;
    }
}

/// Kills restores after fractions of their duration.
async fn check_killed_restores(size: BackupSize, parts: &[f64]) {
    let scene = CrashScenario::create(size).await;
    let mut outcomes = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let moment = scene.duration.mul_f64(*part);
        let context = format!(
            "run {number}, killed after {moment:?} of {:?}",
            scene.duration
        );
        scene.kill_restore_after(moment).await;
        let complete = scene.read_target(&context);
        assert_ne!(complete, TargetContent::Missing, "{context}");
        scene.backup().verify_data_dir(&scene.target());
        outcomes.push(complete);
        scene.rerun(&context);
        scene.reset_to_old(&context);
    }
    eprintln!("takes {:?}, killed runs left {outcomes:?}", scene.duration);
    assert!(
        outcomes.contains(&TargetContent::Old),
        "no run was killed early enough: {outcomes:?}"
    );
    scene.rerun("at last");
    let etcd = start_etcd_on(VERSION, &scene.target()).await;
    scene
        .source
        .assert_restored(&etcd, "after repeated kills")
        .await;
}

/// The same without an existing directory.
async fn check_killed_new_restores(size: BackupSize, parts: &[f64]) {
    let scene = CrashScenario::create(size).await;
    for (number, part) in parts.iter().enumerate() {
        let moment = scene.duration.mul_f64(*part);
        let context = format!(
            "run {number}, killed after {moment:?} of {:?}",
            scene.duration
        );
        fs::remove_dir_all(scene.target()).unwrap();
        for sibling in scene.siblings() {
            fs::remove_dir_all(sibling).unwrap();
        }
        scene.kill_restore_after(moment).await;
        assert_ne!(scene.read_target(&context), TargetContent::Old, "{context}");
        scene.rerun(&context);
    }
}

#[tokio::test]
async fn data_directory_in_use_by_etcd_is_refused() {
    let fixture = Fixture::open("gzip-3.5.30");
    let place = TempDir::new().unwrap();
    let target = place.path().join("target");
    fixture.backup().restore(&target, &[]);
    let mut etcd = start_etcd_on(VERSION, &target).await;
    let run = fixture
        .backup()
        .run("restore", &["--data-dir", target.to_str().unwrap()]);
    let reason = run.expect_refused("in-use", 14);
    assert!(reason.contains(target.to_str().unwrap()), "{reason}");
    assert_eq!(
        place.path().read_dir().unwrap().count(),
        1,
        "nothing is left beside it"
    );
    fixture
        .state
        .assert_restored(&etcd, "while it serves")
        .await;
    etcd.stop().await;
    etcd.restart().await;
    fixture.state.assert_restored(&etcd, "started again").await;
}

/// Mounts a small file system in a mount namespace, copies the old directory there and restores over it. Exits with the
/// restorer's code, unless the target was modified.
const SMALL_DISK_SCRIPT: &str = r#"
    size=$1 place=$2 old=$3; shift 3
    mount -t tmpfs -o size="$size" tmpfs "$place" && cp -a "$old" "$place/target" || exit 99
    "$@"; code=$?
    if [ "$code" -ne 0 ]; then
        diff -r "$old" "$place/target" >&2 || exit 98
        [ "$(ls -A "$place")" = target ] || { ls -A "$place" >&2; exit 97; }
    fi
    exit "$code"
"#;

fn run_on_small_disk(bytes: u64, place: &Path, old: &Path, restore: &Command) -> RestorerRun {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .args(["--mount", "sh", "-c", SMALL_DISK_SCRIPT, "sh"])
        .arg(bytes.to_string())
        .args([place, old])
        .arg(restore.get_program())
        .args(restore.get_args())
        .stdin(Stdio::null());
    for (name, value) in restore.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    RestorerRun::from_output(&command.output().unwrap())
}

/// From no space to almost enough: the disk becomes full at a different step each time.
async fn check_full_disk(eighths: &[u64]) {
    let scene = CrashScenario::create(LARGE).await;
    let place = TempDir::new().unwrap();
    let target = place.path().join("target");
    let all = [&["--data-dir", target.to_str().unwrap()], &TOKEN_ARGS[..]].concat();
    let restore = scene.backup().command("restore", &all);
    for eighth in eighths {
        let bytes = scene.old.bytes() + 65_536 + scene.new.bytes() * eighth / 8;
        let run = run_on_small_disk(bytes, place.path(), &scene.target(), &restore);
        let reason = run.expect_refused("disk", 30);
        assert!(
            reason.contains("No space left on device"),
            "{bytes} bytes: {reason}"
        );
    }
    let enough = scene.old.bytes() + scene.new.bytes() * 2;
    let run = run_on_small_disk(enough, place.path(), &scene.target(), &restore);
    run.expect_success("restored");
}
