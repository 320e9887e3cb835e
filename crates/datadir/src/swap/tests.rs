use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::recovery::recover_by;
use super::*;
use crate::lock;

const OLD: &str = "the old data";
const NEW: &str = "the new data";

fn noon() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

/// A parent directory with a target in it.
struct World {
    root: TempDir,
}

impl World {
    fn empty() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
        }
    }

    fn with_old_data() -> Self {
        let world = Self::empty();
        write_data(&world.target(), OLD);
        world
    }

    fn target(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn names(&self) -> Vec<String> {
        names(self.root.path())
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|item| item.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A data directory whose files say which one it is.
fn write_data(dir: &Path, what: &str) {
    for folder in ["member/snap", "member/wal"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    for file in ["member/snap/db", "member/wal/0.wal"] {
        fs::write(dir.join(file), what).unwrap();
    }
}

/// What a directory is, if it is whole.
fn whole(dir: &Path) -> Option<String> {
    let read = |file| fs::read_to_string(dir.join(file)).ok();
    let (db, wal) = (read("member/snap/db")?, read("member/wal/0.wal")?);
    (db == wal).then_some(db)
}

/// A file system that can exchange two names, or one that cannot.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FileSystem {
    Exchanges,
    OnlyRenames,
}

impl FileSystem {
    fn exchange(self) -> Exchange {
        match self {
            Self::Exchanges => exchange_names,
            Self::OnlyRenames => |_, _| Err(Errno::INVAL),
        }
    }
}

fn swap(target: &Path, system: FileSystem, what: &str) -> Result<Committed, SwapError> {
    let staging = Staging::create(target)?;
    write_data(staging.path(), what);
    staging.commit_by(noon(), system.exchange(), &mut |_| {})
}

#[test]
fn the_new_directory_takes_the_place_of_the_old_which_is_kept() {
    for system in [FileSystem::Exchanges, FileSystem::OnlyRenames] {
        let world = World::with_old_data();
        let committed = swap(&world.target(), system, NEW).unwrap();
        assert_eq!(whole(&world.target()).as_deref(), Some(NEW));
        assert_eq!(world.names(), ["data", "data.before-20260102T030405Z"]);
        let kept = committed.kept.unwrap();
        assert_eq!(whole(&kept).as_deref(), Some(OLD));
        assert_eq!(names(&world.target()), ["member"], "no mark is left");
        let mode = fs::metadata(world.target()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn a_second_swap_in_the_same_second_keeps_both() {
    let world = World::with_old_data();
    swap(&world.target(), FileSystem::Exchanges, "first").unwrap();
    swap(&world.target(), FileSystem::Exchanges, "second").unwrap();
    assert_eq!(
        world.names(),
        [
            "data",
            "data.before-20260102T030405Z",
            "data.before-20260102T030405Z-1"
        ]
    );
    let last = world.root.path().join("data.before-20260102T030405Z-1");
    assert_eq!(whole(&last).as_deref(), Some("first"));
}

#[test]
fn a_target_that_is_missing_or_empty_leaves_nothing_behind() {
    for system in [FileSystem::Exchanges, FileSystem::OnlyRenames] {
        for exists in [false, true] {
            let world = World::empty();
            let target = world.root.path().join("not/yet/there");
            if exists {
                fs::create_dir_all(&target).unwrap();
            }
            let committed = swap(&target, system, NEW).unwrap();
            assert_eq!(committed.kept, None);
            assert_eq!(whole(&target).as_deref(), Some(NEW));
            assert_eq!(names(target.parent().unwrap()), ["there"]);
        }
    }
}

#[test]
fn a_link_is_followed_and_kept() {
    let world = World::with_old_data();
    let link = world.root.path().join("link");
    symlink(world.target(), &link).unwrap();
    let committed = swap(&link, FileSystem::Exchanges, NEW).unwrap();
    assert_eq!(committed.target, fs::canonicalize(world.target()).unwrap());
    assert_eq!(whole(&link).as_deref(), Some(NEW));
    assert!(link.is_symlink());
}

#[test]
fn dropping_what_was_built_leaves_the_target_as_it_was() {
    let world = World::with_old_data();
    let staging = Staging::create(&world.target()).unwrap();
    write_data(staging.path(), "half");
    assert_eq!(world.names().len(), 2);
    drop(staging);
    assert_eq!(world.names(), ["data"]);
    Staging::create(&world.target()).unwrap().abandon().unwrap();
    assert_eq!(world.names(), ["data"]);
    assert_eq!(whole(&world.target()).as_deref(), Some(OLD));
}

#[test]
fn a_database_in_use_is_not_replaced() {
    let world = World::with_old_data();
    let staging = Staging::create(&world.target()).unwrap();
    write_data(staging.path(), NEW);
    let etcd = lock::hold(&world.target().join("member/snap/db")).unwrap();
    let error = staging.commit(noon()).unwrap_err();
    assert!(matches!(error, SwapError::Live { .. }), "{error}");
    let error = Staging::create(&world.target()).unwrap_err();
    assert!(matches!(error, SwapError::Live { .. }), "{error}");
    assert_eq!(world.names(), ["data"]);
    assert_eq!(whole(&world.target()).as_deref(), Some(OLD));
    drop(etcd);
    swap(&world.target(), FileSystem::Exchanges, NEW).unwrap();
}

#[test]
fn two_runs_do_not_build_for_one_target() {
    let world = World::with_old_data();
    let first = Staging::create(&world.target()).unwrap();
    for error in [
        Staging::create(&world.target()).map(drop),
        recover(&world.target()).map(drop),
    ] {
        assert!(matches!(error, Err(SwapError::Busy { .. })), "{error:?}");
    }
    assert!(first.path().exists());
    let other = world.root.path().join("data2");
    Staging::create(&other).expect("another target is no concern of theirs");
}

#[test]
fn what_cannot_be_replaced_is_refused_by_name() {
    let world = World::empty();
    fs::write(world.target(), b"a file").unwrap();
    let error = Staging::create(&world.target()).unwrap_err();
    assert!(matches!(error, SwapError::NotADirectory { .. }), "{error}");
    for target in ["/", ".."] {
        let error = Staging::create(Path::new(target)).unwrap_err();
        assert!(matches!(error, SwapError::Unnamed { .. }), "{error}");
    }
    assert_eq!(fs::read(world.target()).unwrap(), b"a file");
}

#[test]
fn a_directory_of_someone_else_is_left_alone() {
    let world = World::with_old_data();
    let foreign = world.root.path().join("data.restoring-theirs");
    write_data(&foreign, "theirs");
    let empty = world.root.path().join("data.restoring-empty");
    fs::create_dir(&empty).unwrap();
    let recovery = recover(&world.target()).unwrap();
    assert_eq!(recovery.foreign.len(), 1);
    assert_eq!(recovery.removed.len(), 1);
    assert_eq!(whole(&foreign).as_deref(), Some("theirs"));
    assert!(!empty.exists());
}

#[test]
fn nothing_to_recover_is_not_an_error() {
    let world = World::empty();
    assert_eq!(recover(&world.target()).unwrap(), Recovery::default());
    assert_eq!(
        recover(&world.target().join("no/such")).unwrap(),
        Recovery::default()
    );
}

#[test]
fn a_mark_cut_short_does_not_make_a_directory_complete() {
    let world = World::empty();
    for content in [
        "",
        "complete",
        "complete data.before-2026",
        "complet data.before-2026\n",
    ] {
        let staging = world.root.path().join("data.restoring-1");
        write_data(&staging, "half");
        fs::write(staging.join(mark::FILE_NAME), content).unwrap();
        let recovery = recover(&world.target()).unwrap();
        assert!(!recovery.moved_in, "{content:?}");
        assert!(!staging.exists());
        assert!(!world.target().exists());
    }
}

#[test]
fn several_candidates_are_for_a_person_to_choose_from() {
    let world = World::empty();
    for number in [1, 2] {
        let staging = world.root.path().join(format!("data.restoring-{number}"));
        write_data(&staging, NEW);
        fs::write(staging.join(mark::FILE_NAME), "complete data.before-x\n").unwrap();
    }
    let error = recover(&world.target()).unwrap_err();
    assert!(matches!(error, SwapError::Ambiguous { .. }), "{error}");
    assert_eq!(world.names().len(), 2);
}

#[test]
fn a_mark_cannot_name_a_place_elsewhere() {
    let world = World::empty();
    write_data(&world.target(), NEW);
    let old = world.root.path().join("data.restoring-1");
    write_data(&old, OLD);
    for name in ["../data.before-1", "data.before-/../../x", "elsewhere"] {
        let mark = world.target().join(mark::FILE_NAME);
        fs::write(mark, format!("complete {name}\n")).unwrap();
        let recovery = recover(&world.target()).unwrap();
        assert_eq!((recovery.kept, recovery.foreign.len()), (None, 1), "{name}");
        assert_eq!(whole(&old).as_deref(), Some(OLD));
    }
}

/// Environment of the child process: the target, what to do, and before which step to die.
const CHILD_TARGET: &str = "MAINSTAY_TEST_SWAP_TARGET";
const CHILD_ACTION: &str = "MAINSTAY_TEST_SWAP_ACTION";
const CHILD_DIES_AT: &str = "MAINSTAY_TEST_SWAP_DIES_AT";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Commit(FileSystem),
    Recover,
}

/// Runs in a process of its own, started by [`die_at`]: does its work and aborts before the n-th step.
#[test]
fn child() {
    let Some(target) = std::env::var_os(CHILD_TARGET).map(PathBuf::from) else {
        return;
    };
    let text = |name| std::env::var_os(name).unwrap().into_string().unwrap();
    let dies_at: usize = text(CHILD_DIES_AT).parse().unwrap();
    let mut seen = 0;
    let mut watch = |_: Step| {
        if seen == dies_at {
            std::process::abort();
        }
        seen += 1;
    };
    let action = text(CHILD_ACTION);
    if action == "recover" {
        recover_by(&target, &mut watch).unwrap();
        return;
    }
    let staging = Staging::create(&target).unwrap();
    write_data(staging.path(), NEW);
    let system = if action == "exchange" {
        FileSystem::Exchanges
    } else {
        FileSystem::OnlyRenames
    };
    staging
        .commit_by(noon(), system.exchange(), &mut watch)
        .unwrap();
}

/// Whether the child died; `false` when it had fewer steps than that and came to its end.
fn die_at(target: &Path, action: Action, step: usize) -> bool {
    let action = match action {
        Action::Commit(FileSystem::Exchanges) => "exchange",
        Action::Commit(FileSystem::OnlyRenames) => "renames",
        Action::Recover => "recover",
    };
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "swap::tests::child", "--nocapture"])
        .env(CHILD_TARGET, target)
        .env(CHILD_ACTION, action)
        .env(CHILD_DIES_AT, step.to_string())
        .output()
        .unwrap();
    let died = !child.status.success();
    let panicked = String::from_utf8_lossy(&child.stderr).contains("panicked");
    assert!(!panicked, "{}", String::from_utf8_lossy(&child.stderr));
    died
}

/// All whole directories in the world that hold the old data.
fn copies_of_old(world: &World) -> usize {
    let dirs = world
        .names()
        .into_iter()
        .map(|name| world.root.path().join(name));
    dirs.filter(|dir| whole(dir).as_deref() == Some(OLD))
        .count()
}

/// The target is whole, the old data is somewhere, and the next run gets to its end.
fn assert_recovers(world: &World, context: &str) {
    recover(&world.target()).unwrap();
    let target = whole(&world.target());
    assert!(
        matches!(target.as_deref(), Some(OLD | NEW)),
        "{context}: {target:?}"
    );
    assert_eq!(copies_of_old(world), 1, "{context}: {:?}", world.names());
    assert_eq!(names(&world.target()), ["member"], "{context}");
    let leftovers = world
        .names()
        .into_iter()
        .filter(|name| name.contains(".restoring-"))
        .count();
    assert_eq!(leftovers, 0, "{context}");

    swap(&world.target(), FileSystem::Exchanges, "the next run").unwrap();
    assert_eq!(
        whole(&world.target()).as_deref(),
        Some("the next run"),
        "{context}"
    );
    assert_eq!(copies_of_old(world), 1, "{context}");
}

#[test]
fn a_run_killed_before_any_step_leaves_the_old_or_the_new_directory() {
    for (system, steps) in [(FileSystem::Exchanges, 6), (FileSystem::OnlyRenames, 7)] {
        let action = Action::Commit(system);
        for step in 0.. {
            let world = World::with_old_data();
            let died = die_at(&world.target(), action, step);
            let context = format!("{system:?}, killed before step {step}");
            let target = whole(&world.target());
            if system == FileSystem::Exchanges {
                assert!(
                    matches!(target.as_deref(), Some(OLD | NEW)),
                    "{context}: {target:?}"
                );
            }
            assert_eq!(copies_of_old(&world), 1, "{context}");
            assert_recovers(&world, &context);
            if !died {
                assert_eq!(step, steps, "steps of {system:?}");
                break;
            }
        }
    }
}

#[test]
fn a_recovery_that_is_killed_is_recovered_from() {
    for (system, swap_step) in [
        (FileSystem::Exchanges, 3),
        (FileSystem::Exchanges, 2),
        (FileSystem::OnlyRenames, 4),
    ] {
        for step in 0.. {
            let world = World::with_old_data();
            assert!(die_at(&world.target(), Action::Commit(system), swap_step));
            let died = die_at(&world.target(), Action::Recover, step);
            assert_recovers(
                &world,
                &format!("{system:?} at {swap_step}, recovery at {step}"),
            );
            if !died {
                assert!(step > 0, "there was something to do");
                break;
            }
        }
    }
}

/// A file system of its own, unmounted when dropped. `None` where mounting is not allowed.
struct Mount {
    path: PathBuf,
}

impl Mount {
    fn tmpfs(path: &Path, options: &str) -> Option<Self> {
        Self::run(path, &["-t", "tmpfs", "-o", options, "tmpfs"])
    }

    fn bind(path: &Path) -> Option<Self> {
        Self::run(path, &["--bind", path.to_str().unwrap()])
    }

    fn run(path: &Path, arguments: &[&str]) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let done = Command::new("mount").args(arguments).arg(path).output();
        if done.is_ok_and(|output| output.status.success()) {
            return Some(Self {
                path: path.to_owned(),
            });
        }
        eprintln!("skipped: mounting a file system is not allowed here");
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg(&self.path).status();
    }
}

#[test]
fn a_full_disk_loses_nothing() {
    let world = World::empty();
    let Some(_disk) = Mount::tmpfs(world.root.path(), "size=256k") else {
        return;
    };
    write_data(&world.target(), OLD);
    let staging = Staging::create(&world.target()).unwrap();
    let error = fs::write(staging.path().join("big"), vec![7; 1 << 20]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    drop(staging);
    assert_eq!(world.names(), ["data"]);
    assert_eq!(whole(&world.target()).as_deref(), Some(OLD));

    // Not even room for the mark.
    let filler = world.root.path().join("filler");
    let staging = Staging::create(&world.target()).unwrap();
    write_data(staging.path(), NEW);
    fs::write(&filler, vec![7; 1 << 20]).unwrap_err();
    let error = staging.commit(noon()).unwrap_err();
    assert!(matches!(error, SwapError::Mark { .. }), "{error}");
    assert_eq!(world.names(), ["data", "filler"]);
    assert_eq!(whole(&world.target()).as_deref(), Some(OLD));

    fs::remove_file(filler).unwrap();
    swap(&world.target(), FileSystem::Exchanges, NEW).unwrap();
    assert_eq!(whole(&world.target()).as_deref(), Some(NEW));
}

#[test]
fn a_mount_point_is_refused() {
    for mount in [|path: &Path| Mount::tmpfs(path, "size=256k"), Mount::bind] {
        let world = World::with_old_data();
        let Some(_mounted) = mount(&world.target()) else {
            return;
        };
        let error = Staging::create(&world.target()).unwrap_err();
        assert!(matches!(error, SwapError::MountPoint { .. }), "{error}");
        assert_eq!(world.names(), ["data"]);
    }
}

#[test]
fn a_parent_that_is_read_only_is_named() {
    let world = World::empty();
    let disk = world.root.path().join("disk");
    let Some(_disk) = Mount::tmpfs(&disk, "size=256k") else {
        return;
    };
    write_data(&disk.join("data"), OLD);
    let remounted = Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(&disk)
        .status()
        .unwrap();
    assert!(remounted.success());
    let error = Staging::create(&disk.join("data")).unwrap_err();
    assert!(
        matches!(error, SwapError::ParentNotWritable { .. }),
        "{error}"
    );
    assert_eq!(whole(&disk.join("data")).as_deref(), Some(OLD));
}

#[test]
fn a_directory_that_is_set_aside_is_kept_whole_and_its_place_is_free() {
    let world = World::with_old_data();
    let kept = set_aside(&world.target(), noon()).unwrap().unwrap();
    assert_eq!(whole(&kept).as_deref(), Some(OLD));
    assert_eq!(world.names(), ["data.before-20260102T030405Z"]);
    assert_eq!(set_aside(&world.target(), noon()).unwrap(), None);
    assert_eq!(world.names(), ["data.before-20260102T030405Z"]);
}
