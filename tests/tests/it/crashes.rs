//! Whatever happens to a restore, the target is the old directory or the new one, whole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainstay_testkit::recorder::Compression;
use mainstay_testkit::{Etcd, EtcdOptions, EtcdVersion, Load, Recorder};
use tempfile::TempDir;

use crate::support::{Backup, Fixture, Run, State, Tree, boot};

const VERSION: EtcdVersion = EtcdVersion::V3_5New;
const PREFIX: &str = "etcd-main";
/// Left in a directory until its swap is finished.
const MARK: &str = ".mainstay-restoring";
/// With the token given, a restore writes the same bytes every time.
const TOKEN: [&str; 2] = ["--initial-cluster-token", "the-same-every-time"];

/// A backup that takes a while to restore, and a place to restore it to.
struct Scene {
    home: TempDir,
    source: State,
    place: TempDir,
    old: Tree,
    new: Tree,
    takes: Duration,
}

impl Scene {
    async fn set(size: Size) -> Self {
        let home = TempDir::new().unwrap();
        let source = backup(&home, size).await;
        let place = TempDir::new().unwrap();
        let mut scene = Self {
            home,
            source,
            old: Tree::default(),
            new: Tree::default(),
            takes: Duration::ZERO,
            place,
        };
        let started = Instant::now();
        scene.backup().restore(&scene.target(), &TOKEN);
        scene.takes = started.elapsed();
        scene.new = Tree::read(&scene.target()).unwrap();
        fs::remove_dir_all(scene.target()).unwrap();
        Fixture::open("gzip-3.5.30")
            .backup()
            .restore(&scene.target(), &[]);
        scene.old = Tree::read(&scene.target()).unwrap();
        scene
    }

    fn backup(&self) -> Backup {
        Backup::local(self.home.path(), PREFIX)
    }

    fn target(&self) -> PathBuf {
        self.place.path().join("target")
    }

    /// Starts a restore over the target and kills it after a while.
    async fn kill_after(&self, moment: Duration) {
        let target = self.target();
        let all = [&["--data-dir", target.to_str().unwrap()], &TOKEN[..]].concat();
        let mut command = self.backup().command("restore", &all);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        tokio::time::sleep(moment).await;
        kill(&mut child);
    }

    /// Which directory the target is; it must be one of them, to the last byte.
    fn whole(&self, context: &str) -> Whole {
        let mut found = Tree::read(&self.target()).unwrap_or_default();
        found.0.remove(Path::new(MARK));
        match found {
            found if found.0.is_empty() => Whole::Missing,
            found if found == self.old => Whole::Old,
            found if found == self.new => Whole::New,
            found => panic!("{context}: the target is neither old nor new: {found:#?}"),
        }
    }

    /// Everything beside the target.
    fn siblings(&self) -> Vec<PathBuf> {
        let entries = self.place.path().read_dir().unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| *path != self.target()).collect()
    }

    /// Runs again to the end: the new directory is in place, the old one is kept, nothing else is left.
    fn run_again(&self, context: &str) {
        self.backup().restore(&self.target(), &TOKEN);
        assert_eq!(
            Tree::read(&self.target()).as_ref(),
            Some(&self.new),
            "{context}"
        );
        for sibling in self.siblings() {
            let name = sibling.file_name().unwrap().to_str().unwrap();
            assert!(
                name.starts_with("target.before-"),
                "{context}: {name} is left"
            );
        }
    }

    /// Puts the old directory back where it was, from where it was kept.
    fn set_back(&self, context: &str) {
        fs::remove_dir_all(self.target()).unwrap();
        let (kept, others): (Vec<_>, Vec<_>) = self
            .siblings()
            .into_iter()
            .partition(|path| Tree::read(path).as_ref() == Some(&self.old));
        let [kept] = kept.as_slice() else {
            panic!("{context}: the old directory is kept once, not in {kept:?}")
        };
        fs::rename(kept, self.target()).unwrap();
        for other in others {
            fs::remove_dir_all(other).unwrap();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    Missing,
    Old,
    New,
}

/// Bytes of the base and of the deltas, incompressible, so that there is something to write.
type Size = (usize, usize);

const SMALL: Size = (10 << 20, 6 << 20);
const LARGE: Size = (40 << 20, 24 << 20);

async fn backup(home: &TempDir, (base, deltas): Size) -> State {
    let etcd = Etcd::start(VERSION, EtcdOptions::new().huge_transactions()).await;
    let mut load = Load::new(20_260_707);
    load.huge_transaction(&etcd, 2_000, base).await;
    let container = Backup::container(home);
    let mut recorder = Recorder::start(&etcd, &container, PREFIX, Compression::None).await;
    load.huge_transaction(&etcd, 2_000, deltas).await;
    load.run(&etcd, 200).await;
    recorder.cut(&etcd).await.unwrap();
    State::of(&etcd).await
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Parts of a restore: at once, in the middle, and around its end, where the directories are swapped.
const PARTS: [f64; 5] = [0.0, 0.5, 0.9, 0.97, 1.05];
/// So many eighths of the room a restore needs.
const EIGHTHS: [u64; 3] = [0, 4, 7];

#[tokio::test]
async fn a_killed_restore_leaves_the_old_or_the_new_directory() {
    old_or_new(SMALL, &PARTS).await;
}

#[tokio::test]
async fn a_killed_restore_into_a_new_place_leaves_nothing_or_all() {
    nothing_or_all(SMALL, &PARTS[1..4]).await;
}

#[tokio::test]
async fn a_full_disk_leaves_the_target_untouched() {
    untouched_by_a_full_disk(&EIGHTHS).await;
}

/// The same at many more moments.
mod soak {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// All over a restore, and as many around its end.
    fn parts(seed: u64, count: usize) -> Vec<f64> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut draw = |parts: std::ops::Range<f64>| random.random_range(parts);
        let part = |number| match number % 2 {
            0 => draw(0.0..1.1),
            _ => draw(0.85..1.1),
        };
        (0..count).map(part).collect()
    }

    #[tokio::test]
    async fn a_restore_killed_at_any_moment_leaves_the_old_or_the_new_directory() {
        old_or_new(LARGE, &parts(20_260_808, 24)).await;
    }

    #[tokio::test]
    async fn a_restore_into_a_new_place_killed_at_any_moment_leaves_nothing_or_all() {
        nothing_or_all(LARGE, &parts(20_260_909, 8)).await;
    }

    #[tokio::test]
    async fn a_disk_that_is_full_at_any_step_leaves_the_target_untouched() {
        untouched_by_a_full_disk(&[0, 1, 2, 3, 4, 5, 6, 7]).await;
    }
}

/// Kills restores after parts of the time one takes.
async fn old_or_new(size: Size, parts: &[f64]) {
    let scene = Scene::set(size).await;
    let mut seen = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let moment = scene.takes.mul_f64(*part);
        let context = format!("run {number}, killed after {moment:?} of {:?}", scene.takes);
        scene.kill_after(moment).await;
        let whole = scene.whole(&context);
        assert_ne!(whole, Whole::Missing, "{context}");
        scene.backup().verify_directory(&scene.target());
        seen.push(whole);
        scene.run_again(&context);
        scene.set_back(&context);
    }
    eprintln!("takes {:?}, killed runs left {seen:?}", scene.takes);
    assert!(
        seen.contains(&Whole::Old),
        "no run was killed early enough: {seen:?}"
    );
    scene.run_again("at last");
    let etcd = boot(VERSION, &scene.target()).await;
    scene
        .source
        .assert_restored(&etcd, "after all the killing")
        .await;
}

/// The same where there is no directory yet.
async fn nothing_or_all(size: Size, parts: &[f64]) {
    let scene = Scene::set(size).await;
    for (number, part) in parts.iter().enumerate() {
        let moment = scene.takes.mul_f64(*part);
        let context = format!("run {number}, killed after {moment:?} of {:?}", scene.takes);
        fs::remove_dir_all(scene.target()).unwrap();
        for sibling in scene.siblings() {
            fs::remove_dir_all(sibling).unwrap();
        }
        scene.kill_after(moment).await;
        assert_ne!(scene.whole(&context), Whole::Old, "{context}");
        scene.run_again(&context);
    }
}

#[tokio::test]
async fn a_directory_that_etcd_serves_is_not_touched() {
    let fixture = Fixture::open("gzip-3.5.30");
    let place = TempDir::new().unwrap();
    let target = place.path().join("target");
    fixture.backup().restore(&target, &[]);
    let mut etcd = boot(VERSION, &target).await;
    let run = fixture
        .backup()
        .run("restore", &["--data-dir", target.to_str().unwrap()]);
    let reason = run.refused("in-use", 14);
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

/// Mounts a small file system, puts the old directory there, restores over it; the namespace takes the
/// mount along when it ends. Exits as the restorer does, unless the target was touched.
const ON_A_SMALL_DISK: &str = r#"
    size=$1 place=$2 old=$3; shift 3
    mount -t tmpfs -o size="$size" tmpfs "$place" && cp -a "$old" "$place/target" || exit 99
    "$@"; code=$?
    if [ "$code" -ne 0 ]; then
        diff -r "$old" "$place/target" >&2 || exit 98
        [ "$(ls -A "$place")" = target ] || { ls -A "$place" >&2; exit 97; }
    fi
    exit "$code"
"#;

fn on_a_small_disk(bytes: u64, place: &Path, old: &Path, restore: &Command) -> Run {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .args(["--mount", "sh", "-c", ON_A_SMALL_DISK, "sh"])
        .arg(bytes.to_string())
        .args([place, old])
        .arg(restore.get_program())
        .args(restore.get_args())
        .stdin(Stdio::null());
    for (name, value) in restore.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    Run::from_output(&command.output().unwrap())
}

/// From no room at all to not quite enough: the disk is full at another step each time.
async fn untouched_by_a_full_disk(eighths: &[u64]) {
    let scene = Scene::set(LARGE).await;
    let place = TempDir::new().unwrap();
    let target = place.path().join("target");
    let all = [&["--data-dir", target.to_str().unwrap()], &TOKEN[..]].concat();
    let restore = scene.backup().command("restore", &all);
    for eighth in eighths {
        let bytes = scene.old.bytes() + 65_536 + scene.new.bytes() * eighth / 8;
        let run = on_a_small_disk(bytes, place.path(), &scene.target(), &restore);
        let reason = run.refused("disk", 30);
        assert!(
            reason.contains("No space left on device"),
            "{bytes} bytes: {reason}"
        );
    }
    let enough = scene.old.bytes() + scene.new.bytes() * 2;
    let run = on_a_small_disk(enough, place.path(), &scene.target(), &restore);
    run.succeeded("restored");
}
