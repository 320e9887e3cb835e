use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::recovery::recover_swap_with;
use super::*;
use crate::lock;

const OLD_DATA: &str = "the old data";
const NEW_DATA: &str = "the new data";

fn fixed_time() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().unwrap()
}

/// A parent directory with a target in it.
struct SwapFixture {
    root: TempDir,
}

impl SwapFixture {
    fn empty() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
        }
    }

    fn with_old_data() -> Self {
        let world = Self::empty();
        write_data(&world.target(), OLD_DATA);
        world
    }

    fn target(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn list_root(&self) -> Vec<String> {
        list_names(self.root.path())
    }
}

fn list_names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|item| item.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Writes a data directory whose files identify it.
fn write_data(dir: &Path, what: &str) {
    for subdir in ["member/snap", "member/wal"] {
        fs::create_dir_all(dir.join(subdir)).unwrap();
    }
    for file in ["member/snap/db", "member/wal/0.wal"] {
        fs::write(dir.join(file), what).unwrap();
    }
}

/// The content of a directory, if it is complete.
fn read_if_complete(dir: &Path) -> Option<String> {
    let read = |file| fs::read_to_string(dir.join(file)).ok();
    let (db, wal) = (read("member/snap/db")?, read("member/wal/0.wal")?);
    (db == wal).then_some(db)
}

/// Whether the file system supports exchanging two names.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FileSystem {
    SupportsExchange,
    RenameOnly,
}

impl FileSystem {
    fn exchange_fn(self) -> ExchangeFn {
        match self {
            Self::SupportsExchange => exchange_names,
            Self::RenameOnly => |_, _| Err(Errno::INVAL),
        }
    }
}

fn run_swap(target: &Path, system: FileSystem, what: &str) -> Result<CommittedSwap, SwapError> {
    let staging = StagingDir::create(target)?;
    write_data(staging.path(), what);
    staging.commit_with(fixed_time(), system.exchange_fn(), &mut |_| {})
}

#[test]
fn new_directory_replaces_the_old_and_the_old_is_kept() {
    for system in [FileSystem::SupportsExchange, FileSystem::RenameOnly] {
        let world = SwapFixture::with_old_data();
        let committed = run_swap(&world.target(), system, NEW_DATA).unwrap();
        assert_eq!(read_if_complete(&world.target()).as_deref(), Some(NEW_DATA));
        assert_eq!(world.list_root(), ["data", "data.before-20260102T030405Z"]);
        let kept = committed.previous_dir.unwrap();
        assert_eq!(read_if_complete(&kept).as_deref(), Some(OLD_DATA));
        assert_eq!(
            list_names(&world.target()),
            ["member"],
            "marker file remains"
        );
        let mode = fs::metadata(world.target()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn second_swap_in_the_same_second_keeps_both_previous_directories() {
    let world = SwapFixture::with_old_data();
    run_swap(&world.target(), FileSystem::SupportsExchange, "first").unwrap();
    run_swap(&world.target(), FileSystem::SupportsExchange, "second").unwrap();
    assert_eq!(
        world.list_root(),
        [
            "data",
            "data.before-20260102T030405Z",
            "data.before-20260102T030405Z-1"
        ]
    );
    let last = world.root.path().join("data.before-20260102T030405Z-1");
    assert_eq!(read_if_complete(&last).as_deref(), Some("first"));
}

#[test]
fn missing_or_empty_target_leaves_no_previous_directory() {
    for system in [FileSystem::SupportsExchange, FileSystem::RenameOnly] {
        for exists in [false, true] {
            let world = SwapFixture::empty();
            let target = world.root.path().join("not/yet/there");
            if exists {
                fs::create_dir_all(&target).unwrap();
            }
            let committed = run_swap(&target, system, NEW_DATA).unwrap();
            assert_eq!(committed.previous_dir, None);
            assert_eq!(read_if_complete(&target).as_deref(), Some(NEW_DATA));
            assert_eq!(list_names(target.parent().unwrap()), ["there"]);
        }
    }
}

#[test]
fn symlink_is_followed_and_kept() {
    let world = SwapFixture::with_old_data();
    let link = world.root.path().join("link");
    symlink(world.target(), &link).unwrap();
    let committed = run_swap(&link, FileSystem::SupportsExchange, NEW_DATA).unwrap();
    assert_eq!(committed.target, fs::canonicalize(world.target()).unwrap());
    assert_eq!(read_if_complete(&link).as_deref(), Some(NEW_DATA));
    assert!(link.is_symlink());
}

#[test]
fn dropped_staging_directory_leaves_the_target_unchanged() {
    let world = SwapFixture::with_old_data();
    let staging = StagingDir::create(&world.target()).unwrap();
    write_data(staging.path(), "half");
    assert_eq!(world.list_root().len(), 2);
    drop(staging);
    assert_eq!(world.list_root(), ["data"]);
    StagingDir::create(&world.target())
        .unwrap()
        .discard()
        .unwrap();
    assert_eq!(world.list_root(), ["data"]);
    assert_eq!(read_if_complete(&world.target()).as_deref(), Some(OLD_DATA));
}

#[test]
fn database_in_use_is_not_replaced() {
    let world = SwapFixture::with_old_data();
    let staging = StagingDir::create(&world.target()).unwrap();
    write_data(staging.path(), NEW_DATA);
    let etcd = lock::lock_database(&world.target().join("member/snap/db")).unwrap();
    let error = staging.commit(fixed_time()).unwrap_err();
    assert!(matches!(error, SwapError::DatabaseInUse { .. }), "{error}");
    let error = StagingDir::create(&world.target()).unwrap_err();
    assert!(matches!(error, SwapError::DatabaseInUse { .. }), "{error}");
    assert_eq!(world.list_root(), ["data"]);
    assert_eq!(read_if_complete(&world.target()).as_deref(), Some(OLD_DATA));
    drop(etcd);
    run_swap(&world.target(), FileSystem::SupportsExchange, NEW_DATA).unwrap();
}

#[test]
fn second_staging_for_the_same_target_is_refused() {
    let world = SwapFixture::with_old_data();
    let first = StagingDir::create(&world.target()).unwrap();
    for error in [
        StagingDir::create(&world.target()).map(drop),
        recover_swap(&world.target()).map(drop),
    ] {
        assert!(matches!(error, Err(SwapError::Busy { .. })), "{error:?}");
    }
    assert!(first.path().exists());
    let other = world.root.path().join("data2");
    StagingDir::create(&other).expect("other targets are independent");
}

#[test]
fn target_that_cannot_be_replaced_is_refused_with_its_reason() {
    let world = SwapFixture::empty();
    fs::write(world.target(), b"a file").unwrap();
    let error = StagingDir::create(&world.target()).unwrap_err();
    assert!(matches!(error, SwapError::NotADirectory { .. }), "{error}");
    for target in ["/", ".."] {
        let error = StagingDir::create(Path::new(target)).unwrap_err();
        assert!(matches!(error, SwapError::InvalidTarget { .. }), "{error}");
    }
    assert_eq!(fs::read(world.target()).unwrap(), b"a file");
}

#[test]
fn foreign_staging_directory_is_not_removed() {
    let world = SwapFixture::with_old_data();
    let foreign = world.root.path().join("data.restoring-theirs");
    write_data(&foreign, "theirs");
    let empty = world.root.path().join("data.restoring-empty");
    fs::create_dir(&empty).unwrap();
    let recovery = recover_swap(&world.target()).unwrap();
    assert_eq!(recovery.foreign.len(), 1);
    assert_eq!(recovery.removed.len(), 1);
    assert_eq!(read_if_complete(&foreign).as_deref(), Some("theirs"));
    assert!(!empty.exists());
}

#[test]
fn recovery_without_leftovers_succeeds() {
    let world = SwapFixture::empty();
    assert_eq!(
        recover_swap(&world.target()).unwrap(),
        SwapRecovery::default()
    );
    assert_eq!(
        recover_swap(&world.target().join("no/such")).unwrap(),
        SwapRecovery::default()
    );
}

#[test]
fn truncated_marker_does_not_make_a_directory_complete() {
    let world = SwapFixture::empty();
    for content in [
        "",
        "complete",
        "complete data.before-2026",
        "complet data.before-2026\n",
    ] {
        let staging = world.root.path().join("data.restoring-1");
        write_data(&staging, "half");
        fs::write(staging.join(marker::FILE_NAME), content).unwrap();
        let recovery = recover_swap(&world.target()).unwrap();
        assert!(!recovery.moved_into_place, "{content:?}");
        assert!(!staging.exists());
        assert!(!world.target().exists());
    }
}

#[test]
fn several_complete_staging_directories_are_ambiguous() {
    let world = SwapFixture::empty();
    for number in [1, 2] {
        let staging = world.root.path().join(format!("data.restoring-{number}"));
        write_data(&staging, NEW_DATA);
        fs::write(staging.join(marker::FILE_NAME), "complete data.before-x\n").unwrap();
    }
    let error = recover_swap(&world.target()).unwrap_err();
    assert!(matches!(error, SwapError::Ambiguous { .. }), "{error}");
    assert_eq!(world.list_root().len(), 2);
}

#[test]
fn marker_cannot_name_a_path_outside_the_parent() {
    let world = SwapFixture::empty();
    write_data(&world.target(), NEW_DATA);
    let old = world.root.path().join("data.restoring-1");
    write_data(&old, OLD_DATA);
    for name in ["../data.before-1", "data.before-/../../x", "elsewhere"] {
        let mark = world.target().join(marker::FILE_NAME);
        fs::write(mark, format!("complete {name}\n")).unwrap();
        let recovery = recover_swap(&world.target()).unwrap();
        assert_eq!(
            (recovery.previous_dir, recovery.foreign.len()),
            (None, 1),
            "{name}"
        );
        assert_eq!(read_if_complete(&old).as_deref(), Some(OLD_DATA));
    }
}

/// Environment of the child process: target, action, and the step before which to abort.
const CHILD_TARGET: &str = "MAINSTAY_TEST_SWAP_TARGET";
const CHILD_ACTION: &str = "MAINSTAY_TEST_SWAP_ACTION";
const CHILD_ABORTS_AT: &str = "MAINSTAY_TEST_SWAP_DIES_AT";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Commit(FileSystem),
    Recover,
}

/// Runs in a child process of [`abort_child_at`] and aborts before the n-th step.
#[test]
fn child() {
    let Some(target) = std::env::var_os(CHILD_TARGET).map(PathBuf::from) else {
        return;
    };
    let text = |name| std::env::var_os(name).unwrap().into_string().unwrap();
    let abort_step: usize = text(CHILD_ABORTS_AT).parse().unwrap();
    let mut step = 0;
    let mut watch = |_: SwapStep| {
        if step == abort_step {
            std::process::abort();
        }
        step += 1;
    };
    let action = text(CHILD_ACTION);
    if action == "recover" {
        recover_swap_with(&target, &mut watch).unwrap();
        return;
    }
    let staging = StagingDir::create(&target).unwrap();
    write_data(staging.path(), NEW_DATA);
    let system = if action == "exchange" {
        FileSystem::SupportsExchange
    } else {
        FileSystem::RenameOnly
    };
    staging
        .commit_with(fixed_time(), system.exchange_fn(), &mut watch)
        .unwrap();
}

/// Whether the child aborted; `false` if it had fewer steps and completed.
fn abort_child_at(target: &Path, action: Action, step: usize) -> bool {
    let action = match action {
        Action::Commit(FileSystem::SupportsExchange) => "exchange",
        Action::Commit(FileSystem::RenameOnly) => "renames",
        Action::Recover => "recover",
    };
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "swap::tests::child", "--nocapture"])
        .env(CHILD_TARGET, target)
        .env(CHILD_ACTION, action)
        .env(CHILD_ABORTS_AT, step.to_string())
        .output()
        .unwrap();
    let aborted = !child.status.success();
    let panicked = String::from_utf8_lossy(&child.stderr).contains("panicked");
    assert!(!panicked, "{}", String::from_utf8_lossy(&child.stderr));
    aborted
}

/// Number of complete directories with the old data.
fn count_old_copies(world: &SwapFixture) -> usize {
    let dirs = world
        .list_root()
        .into_iter()
        .map(|name| world.root.path().join(name));
    dirs.filter(|dir| read_if_complete(dir).as_deref() == Some(OLD_DATA))
        .count()
}

/// Asserts that the target is complete, the old data exists once, and the next run succeeds.
fn assert_recovers(world: &SwapFixture, context: &str) {
    recover_swap(&world.target()).unwrap();
    let target = read_if_complete(&world.target());
    assert!(
        matches!(target.as_deref(), Some(OLD_DATA | NEW_DATA)),
        "{context}: {target:?}"
    );
    assert_eq!(
        count_old_copies(world),
        1,
        "{context}: {:?}",
        world.list_root()
    );
    assert_eq!(list_names(&world.target()), ["member"], "{context}");
    let leftovers = world
        .list_root()
        .into_iter()
        .filter(|name| name.contains(".restoring-"))
        .count();
    assert_eq!(leftovers, 0, "{context}");

    run_swap(
        &world.target(),
        FileSystem::SupportsExchange,
        "the next run",
    )
    .unwrap();
    assert_eq!(
        read_if_complete(&world.target()).as_deref(),
        Some("the next run"),
        "{context}"
    );
    assert_eq!(count_old_copies(world), 1, "{context}");
}

#[test]
fn swap_killed_at_any_step_leaves_the_old_or_the_new_directory() {
    for (system, steps) in [
        (FileSystem::SupportsExchange, 6),
        (FileSystem::RenameOnly, 7),
    ] {
        let action = Action::Commit(system);
        for step in 0.. {
            let world = SwapFixture::with_old_data();
            let aborted = abort_child_at(&world.target(), action, step);
            let context = format!("{system:?}, killed before step {step}");
            let target = read_if_complete(&world.target());
            if system == FileSystem::SupportsExchange {
                assert!(
                    matches!(target.as_deref(), Some(OLD_DATA | NEW_DATA)),
                    "{context}: {target:?}"
                );
            }
            assert_eq!(count_old_copies(&world), 1, "{context}");
            assert_recovers(&world, &context);
            if !aborted {
                assert_eq!(step, steps, "steps of {system:?}");
                break;
            }
        }
    }
}

#[test]
fn killed_recovery_is_recovered() {
    for (system, swap_step) in [
        (FileSystem::SupportsExchange, 3),
        (FileSystem::SupportsExchange, 2),
        (FileSystem::RenameOnly, 4),
    ] {
        for step in 0.. {
            let world = SwapFixture::with_old_data();
            assert!(abort_child_at(
                &world.target(),
                Action::Commit(system),
                swap_step
            ));
            let aborted = abort_child_at(&world.target(), Action::Recover, step);
            assert_recovers(
                &world,
                &format!("{system:?} at {swap_step}, recovery at {step}"),
            );
            if !aborted {
                assert!(step > 0, "recovery must have at least one step");
                break;
            }
        }
    }
}

/// A temporary mount, unmounted on drop.
struct Mount {
    path: PathBuf,
}

impl Mount {
    fn mount_tmpfs(path: &Path, options: &str) -> Option<Self> {
        Self::run(path, &["-t", "tmpfs", "-o", options, "tmpfs"])
    }

    fn mount_bind(path: &Path) -> Option<Self> {
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
fn full_disk_loses_no_data() {
    let world = SwapFixture::empty();
    let Some(_disk) = Mount::mount_tmpfs(world.root.path(), "size=256k") else {
        return;
    };
    write_data(&world.target(), OLD_DATA);
    let staging = StagingDir::create(&world.target()).unwrap();
    let error = fs::write(staging.path().join("big"), vec![7; 1 << 20]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    drop(staging);
    assert_eq!(world.list_root(), ["data"]);
    assert_eq!(read_if_complete(&world.target()).as_deref(), Some(OLD_DATA));

    // No space for the marker content.
    let filler = world.root.path().join("filler");
    let staging = StagingDir::create(&world.target()).unwrap();
    write_data(staging.path(), NEW_DATA);
    fs::write(&filler, vec![7; 1 << 20]).unwrap_err();
    let error = staging.commit(fixed_time()).unwrap_err();
    assert!(matches!(error, SwapError::Marker { .. }), "{error}");
    assert_eq!(world.list_root(), ["data", "filler"]);
    assert_eq!(read_if_complete(&world.target()).as_deref(), Some(OLD_DATA));

    fs::remove_file(filler).unwrap();
    run_swap(&world.target(), FileSystem::SupportsExchange, NEW_DATA).unwrap();
    assert_eq!(read_if_complete(&world.target()).as_deref(), Some(NEW_DATA));
}

#[test]
fn mount_point_is_refused() {
    for mount in [
        |path: &Path| Mount::mount_tmpfs(path, "size=256k"),
        Mount::mount_bind,
    ] {
        let world = SwapFixture::with_old_data();
        let Some(_mounted) = mount(&world.target()) else {
            return;
        };
        let error = StagingDir::create(&world.target()).unwrap_err();
        assert!(matches!(error, SwapError::MountPoint { .. }), "{error}");
        assert_eq!(world.list_root(), ["data"]);
    }
}

#[test]
fn read_only_parent_is_named_in_the_error() {
    let world = SwapFixture::empty();
    let disk = world.root.path().join("disk");
    let Some(_disk) = Mount::mount_tmpfs(&disk, "size=256k") else {
        return;
    };
    write_data(&disk.join("data"), OLD_DATA);
    let remounted = Command::new("mount")
        .args(["-o", "remount,ro"])
        .arg(&disk)
        .status()
        .unwrap();
    assert!(remounted.success());
    let error = StagingDir::create(&disk.join("data")).unwrap_err();
    assert!(
        matches!(error, SwapError::ParentNotWritable { .. }),
        "{error}"
    );
    assert_eq!(
        read_if_complete(&disk.join("data")).as_deref(),
        Some(OLD_DATA)
    );
}

#[test]
fn previous_data_directory_is_complete_and_its_old_path_is_free() {
    let world = SwapFixture::with_old_data();
    let kept = rename_to_previous(&world.target(), fixed_time())
        .unwrap()
        .unwrap();
    assert_eq!(read_if_complete(&kept).as_deref(), Some(OLD_DATA));
    assert_eq!(world.list_root(), ["data.before-20260102T030405Z"]);
    assert_eq!(
        rename_to_previous(&world.target(), fixed_time()).unwrap(),
        None
    );
    assert_eq!(world.list_root(), ["data.before-20260102T030405Z"]);
}
