//! Directories with a missing part.

use std::fs::{self, File};

use mainstay_bbolt::Update;
use mainstay_datadir::{Depth, DirVerdict, FaultKind, VerifyError, WarningKind, verify};
use mainstay_mvcc::schema;

use crate::support::{
    DataDir, DatabaseContent, PUT_REQUEST, hard_state, normal_entry, open_read_write,
};

/// A database of a first start: the buckets exist but have no entries.
fn empty_content() -> DatabaseContent {
    DatabaseContent {
        rows: Vec::new(),
        consistent_index: None,
        term: None,
        cluster_version: None,
        members: Vec::new(),
        leases: Vec::new(),
        ..DatabaseContent::valid()
    }
}

#[test]
fn directory_without_data_is_missing() {
    let place = tempfile::tempdir().unwrap();
    for path in [place.path().join("none"), place.path().to_owned()] {
        let report = verify(&path, Depth::Sanity).unwrap();
        assert_eq!(report.verdict, DirVerdict::Missing);
        assert_eq!((report.faults.len(), report.facts), (0, None));
    }
}

#[test]
fn file_in_place_of_a_directory_is_corruption() {
    let dir = DataDir::empty();
    let data = dir.path();
    for path in [data.join("member/snap"), data.join("member"), data] {
        fs::remove_dir_all(&path).unwrap();
        fs::write(path, b"").unwrap();
        dir.assert_faults(&[FaultKind::PartMissing]);
    }
}

#[test]
fn first_start_that_ended_before_the_wal_leaves_no_data() {
    let without_wal = |dir: &DataDir| fs::remove_dir(dir.path().join("member/wal")).unwrap();
    let dirs = [
        DataDir::empty(),
        {
            let dir = DataDir::empty();
            empty_content().write(&dir.db_path());
            dir
        },
        {
            let dir = DataDir::empty();
            File::create(dir.db_path()).unwrap();
            without_wal(&dir);
            dir
        },
        {
            let dir = DataDir::empty();
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
fn database_without_its_wal_is_corruption() {
    let dir = DataDir::valid();
    let wal = dir.path().join("member/wal");
    for file in fs::read_dir(&wal).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    dir.assert_faults(&[FaultKind::PartMissing]);
    fs::remove_dir(&wal).unwrap();
    let report = dir.assert_faults(&[FaultKind::PartMissing]);
    assert_eq!(report.faults[0].file, wal);
    assert_eq!(report.facts.unwrap().last_wal_index, None);
}

#[test]
fn wal_without_its_database_is_corruption() {
    let dir = DataDir::valid();
    fs::remove_file(dir.db_path()).unwrap();
    let report = dir.assert_faults(&[FaultKind::PartMissing]);
    assert_eq!(report.faults[0].file, dir.db_path());
    fs::create_dir(dir.db_path()).unwrap();
    dir.assert_faults(&[FaultKind::PartMissing]);
    fs::remove_dir_all(dir.path().join("member/snap")).unwrap();
    dir.assert_faults(&[FaultKind::PartMissing]);
}

/// A function that writes an empty database, and the expected warning.
type EmptyDatabaseCase<'a> = (&'a dyn Fn(&DataDir), &'a [WarningKind]);

/// A server killed before its first commit has everything in its WAL.
#[test]
fn empty_database_with_a_wal_is_valid() {
    let log = DataDir::one_segment(|segment| {
        for index in 1..=3 {
            let put = normal_entry(index, 2, PUT_REQUEST);
            segment.write_entry(&put).unwrap();
        }
        segment.write_state(&hard_state(2, 2)).unwrap();
    });
    let no_buckets = |dir: &DataDir| {
        fs::write(dir.db_path(), b"").unwrap();
        let mut update = Update::create(open_read_write(&dir.db_path()), 4096).unwrap();
        update.remove_bucket(schema::KEY);
        update.commit().unwrap();
    };
    let writers: [EmptyDatabaseCase<'_>; 3] = [
        (&|dir| empty_content().write(&dir.db_path()), &[]),
        (&no_buckets, &[WarningKind::DatabaseEmpty]),
        (
            &|dir| drop(File::create(dir.db_path()).unwrap()),
            &[WarningKind::DatabaseEmpty],
        ),
    ];
    for (write, warnings) in writers {
        let dir = DataDir::empty();
        write(&dir);
        dir.write_log(&log);
        let expected = [warnings, &[WarningKind::NotYetAMember]].concat();
        let facts = dir.assert_warnings(&expected).facts.unwrap();
        assert_eq!(facts.possible_writes_in_wal, Some(3));
        assert_eq!(facts.committed_writes_in_wal, Some(2));
    }
}

#[test]
fn file_that_cannot_be_opened_is_an_error_and_not_corruption() {
    use std::os::unix::fs::symlink;
    let dir = DataDir::valid();
    let name = "0000000000000002-0000000000000005.snap";
    fs::remove_file(dir.snap_path(name)).unwrap();
    // A link to itself fails for root as well, unlike file permissions.
    symlink(dir.snap_path(name), dir.snap_path(name)).unwrap();
    let error = verify(&dir.path(), Depth::Full).unwrap_err();
    assert!(matches!(error, VerifyError::Open { .. }), "{error:?}");
    fs::remove_file(dir.db_path()).unwrap();
    symlink(dir.db_path(), dir.db_path()).unwrap();
    let error = verify(&dir.path(), Depth::Sanity).unwrap_err();
    assert!(error.to_string().contains("snap/db"), "{error}");
}
