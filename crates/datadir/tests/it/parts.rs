//! Directories that lack a part.

use std::fs::{self, File};

use mainstay_bbolt::Update;
use mainstay_datadir::{Depth, DirVerdict, FaultKind, VerifyError, WarningKind, verify};
use mainstay_mvcc::schema;

use crate::support::{Content, Dir, PUT_REQUEST, entry, open, state};

/// An empty database as etcd has it in its first moments: the buckets in it have no entries.
fn blank() -> Content {
    Content {
        rows: Vec::new(),
        consistent_index: None,
        term: None,
        cluster_version: None,
        members: Vec::new(),
        leases: Vec::new(),
        ..Content::sound()
    }
}

#[test]
fn a_directory_without_data_is_missing() {
    let place = tempfile::tempdir().unwrap();
    for path in [place.path().join("none"), place.path().to_owned()] {
        let report = verify(&path, Depth::Sanity).unwrap();
        assert_eq!(report.verdict, DirVerdict::Missing);
        assert_eq!((report.faults.len(), report.facts), (0, None));
    }
}

#[test]
fn a_file_in_the_place_of_a_folder_is_damage() {
    let dir = Dir::bare();
    let data = dir.path();
    for path in [data.join("member/snap"), data.join("member"), data] {
        fs::remove_dir_all(&path).unwrap();
        fs::write(path, b"").unwrap();
        dir.faults(&[FaultKind::PartMissing]);
    }
}

#[test]
fn a_first_start_that_never_got_as_far_as_a_log_leaves_no_data() {
    let without_wal = |dir: &Dir| fs::remove_dir(dir.path().join("member/wal")).unwrap();
    let dirs = [
        Dir::bare(),
        {
            let dir = Dir::bare();
            blank().write(&dir.db());
            dir
        },
        {
            let dir = Dir::bare();
            File::create(dir.db()).unwrap();
            without_wal(&dir);
            dir
        },
        {
            let dir = Dir::bare();
            without_wal(&dir);
            fs::remove_dir(dir.path().join("member/snap")).unwrap();
            dir
        },
    ];
    for dir in dirs {
        let report = dir.verify(Depth::Full);
        assert_eq!(report.verdict, DirVerdict::Missing, "{report:?}");
        let last = report.warnings.last().unwrap();
        assert_eq!(last.what, WarningKind::FirstStartUnfinished);
    }
}

#[test]
fn a_database_that_has_lost_its_log_is_damage() {
    let dir = Dir::sound();
    let wal = dir.path().join("member/wal");
    for file in fs::read_dir(&wal).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    dir.faults(&[FaultKind::PartMissing]);
    fs::remove_dir(&wal).unwrap();
    let report = dir.faults(&[FaultKind::PartMissing]);
    assert_eq!(report.faults[0].file, wal);
    assert_eq!(report.facts.unwrap().last_wal_index, None);
}

#[test]
fn a_log_that_has_lost_its_database_is_damage() {
    let dir = Dir::sound();
    fs::remove_file(dir.db()).unwrap();
    let report = dir.faults(&[FaultKind::PartMissing]);
    assert_eq!(report.faults[0].file, dir.db());
    fs::create_dir(dir.db()).unwrap();
    dir.faults(&[FaultKind::PartMissing]);
    fs::remove_dir_all(dir.path().join("member/snap")).unwrap();
    dir.faults(&[FaultKind::PartMissing]);
}

/// How to write a database that holds nothing, and what is said about it.
type Blank<'a> = (&'a dyn Fn(&Dir), &'a [WarningKind]);

/// A server that is killed before its first commit has everything in its log.
#[test]
fn a_database_that_holds_nothing_yet_is_no_damage() {
    let log = Dir::one_segment(|segment| {
        for index in 1..=3 {
            let put = entry(index, 2, PUT_REQUEST);
            segment.entry(&put).unwrap();
        }
        segment.state(&state(2, 2)).unwrap();
    });
    let no_buckets = |dir: &Dir| {
        fs::write(dir.db(), b"").unwrap();
        let mut update = Update::create(open(&dir.db()), 4096).unwrap();
        update.remove(schema::KEY);
        update.commit().unwrap();
    };
    let writers: [Blank<'_>; 3] = [
        (&|dir| blank().write(&dir.db()), &[]),
        (&no_buckets, &[WarningKind::DatabaseEmpty]),
        (
            &|dir| drop(File::create(dir.db()).unwrap()),
            &[WarningKind::DatabaseEmpty],
        ),
    ];
    for (write, warnings) in writers {
        let dir = Dir::bare();
        write(&dir);
        dir.write_log(&log);
        let expected = [warnings, &[WarningKind::NotYetAMember]].concat();
        let facts = dir.warnings(&expected).facts.unwrap();
        assert_eq!(facts.possible_writes_in_wal, Some(3));
        assert_eq!(facts.committed_writes_in_wal, Some(2));
    }
}

#[test]
fn what_cannot_be_looked_at_is_an_error_and_not_damage() {
    use std::os::unix::fs::symlink;
    let dir = Dir::sound();
    let name = "0000000000000002-0000000000000005.snap";
    fs::remove_file(dir.snap(name)).unwrap();
    // Unlike a mode, a link to itself stops root as well.
    symlink(dir.snap(name), dir.snap(name)).unwrap();
    let error = verify(&dir.path(), Depth::Full).unwrap_err();
    assert!(matches!(error, VerifyError::Open { .. }), "{error:?}");
    fs::remove_file(dir.db()).unwrap();
    symlink(dir.db(), dir.db()).unwrap();
    let error = verify(&dir.path(), Depth::Sanity).unwrap_err();
    assert!(error.to_string().contains("snap/db"), "{error}");
}
