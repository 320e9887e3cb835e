use std::time::SystemTime;

use super::*;

fn test_directory() -> (tempfile::TempDir, Directory) {
    let home = tempfile::tempdir().unwrap();
    let directory = Directory::new_below(home.path(), "default.bkp").unwrap();
    (home, directory)
}

fn put_object(
    directory: &Directory,
    key: &str,
    bytes: &[u8],
    mode: WriteMode,
) -> Result<(), AttemptError> {
    let file = directory.create_unfinished(key)?;
    file.write_at(bytes, 0)?;
    file.publish(mode)
}

fn list_keys(directory: &Directory, folder: &str) -> Vec<String> {
    directory
        .list(folder)
        .unwrap()
        .into_iter()
        .map(|object| object.key)
        .collect()
}

fn file_mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn container_cannot_escape_the_home_directory() {
    for bad in ["", "/etc", "..", "a/../../b", "."] {
        assert!(
            Directory::new_below(Path::new("/somewhere"), bad).is_none(),
            "{bad:?} was accepted"
        );
    }
    assert!(Directory::new_below(Path::new("/somewhere"), "a/b").is_some());
}

#[test]
fn directories_and_files_are_accessible_to_their_owner_only() {
    let (home, directory) = test_directory();
    put_object(&directory, "p/v2/Full", b"x", WriteMode::Create).unwrap();
    for folder in ["default.bkp", "default.bkp/p", "default.bkp/p/v2"] {
        assert_eq!(file_mode(&home.path().join(folder)), 0o700, "{folder}");
    }
    assert_eq!(file_mode(&home.path().join("default.bkp/p/v2/Full")), 0o600);
}

#[test]
fn unfinished_file_is_invisible_and_is_removed_when_dropped() {
    let (home, directory) = test_directory();
    let file = directory.create_unfinished("v2/Full").unwrap();
    file.write_at(b"half", 0).unwrap();
    assert_eq!(list_keys(&directory, "v2"), Vec::<String>::new());
    assert!(directory.head("v2/Full").is_err());
    drop(file);
    assert_eq!(
        fs::read_dir(home.path().join("default.bkp/v2"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn create_only_keeps_the_first_object() {
    let (_home, directory) = test_directory();
    put_object(&directory, "k", b"first", WriteMode::Create).unwrap();
    let fault = put_object(&directory, "k", b"second", WriteMode::Create).unwrap_err();
    assert_eq!(fault.class(), crate::ErrorClass::Exists);
    assert_eq!(directory.read("k", 0..5).unwrap().1, "first");
    put_object(&directory, "k", b"third", WriteMode::Overwrite).unwrap();
    assert_eq!(directory.read("k", 0..5).unwrap().1, "third");
}

#[test]
fn replaced_file_has_a_different_version() {
    let (_home, directory) = test_directory();
    put_object(&directory, "k", b"first", WriteMode::Overwrite).unwrap();
    let before = directory.head("k").unwrap();
    put_object(&directory, "k", b"other", WriteMode::Overwrite).unwrap();
    assert_ne!(before.etag, directory.head("k").unwrap().etag);
}

#[test]
fn listing_stays_inside_its_directory() {
    let (_home, directory) = test_directory();
    for key in [
        "a/etcd/v2/x",
        "a/etcd-events/v2/x",
        "a/etcd/v1/Backup-1/y",
        "top",
    ] {
        put_object(&directory, key, b"", WriteMode::Create).unwrap();
    }
    assert_eq!(
        list_keys(&directory, "a/etcd"),
        ["a/etcd/v1/Backup-1/y", "a/etcd/v2/x"]
    );
    assert_eq!(list_keys(&directory, "").len(), 4);
    assert_eq!(list_keys(&directory, "absent"), Vec::<String>::new());
    assert_eq!(
        list_keys(&directory, "top/under-a-file"),
        Vec::<String>::new()
    );
}

#[test]
fn directory_is_not_an_object() {
    let (_home, directory) = test_directory();
    put_object(&directory, "a/b", b"x", WriteMode::Create).unwrap();
    assert_eq!(
        directory.head("a").unwrap_err().class(),
        crate::ErrorClass::NotFound
    );
    assert_eq!(
        directory.read("a", 0..1).unwrap_err().class(),
        crate::ErrorClass::NotFound
    );
    assert_eq!(
        directory.read("a/b/c", 0..1).unwrap_err().class(),
        crate::ErrorClass::NotFound
    );
}

#[test]
fn leftovers_of_a_crash_are_removed_after_a_day() {
    let (home, directory) = test_directory();
    put_object(&directory, "k", b"x", WriteMode::Create).unwrap();
    let root = home.path().join("default.bkp");
    let (old, new) = (
        root.join(".mainstay-upload-old"),
        root.join(".mainstay-upload-new"),
    );
    for path in [&old, &new] {
        fs::write(path, "half").unwrap();
    }
    let two_days_ago = SystemTime::now() - 2 * ABANDONED_AFTER;
    File::options()
        .write(true)
        .open(&old)
        .unwrap()
        .set_modified(two_days_ago)
        .unwrap();
    assert_eq!(list_keys(&directory, ""), ["k"]);
    drop(directory.create_unfinished("l").unwrap());
    assert!(!old.exists());
    assert!(new.exists());
}

#[test]
fn deleting_twice_succeeds() {
    let (_home, directory) = test_directory();
    put_object(&directory, "k", b"x", WriteMode::Create).unwrap();
    directory.delete("k").unwrap();
    directory.delete("k").unwrap();
    directory.delete("never/was").unwrap();
    assert_eq!(
        directory.head("k").unwrap_err().class(),
        crate::ErrorClass::NotFound
    );
}
