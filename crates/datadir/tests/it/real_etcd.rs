//! The directory of an etcd 3.6.14 after a mixed load and a clean stop.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use mainstay_datadir::{CleanStop, Depth, DirVerdict, FaultKind, verify};
use mainstay_ids::Revision;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{flip_byte, set_length};

fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/gzip-3.6.14")
        .join(name)
}

fn unpack_fixture() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let archive = File::open(fixture_path("datadir.tar.gz")).unwrap();
    tar::Archive::new(GzDecoder::new(archive))
        .unpack(place.path())
        .unwrap();
    let data = place.path().join("data");
    (place, data)
}

#[test]
fn real_directory_is_valid_and_matches_what_its_server_reported() {
    let (_place, data) = unpack_fixture();
    let report = verify(&data, Depth::Full).unwrap();
    assert_eq!(report.verdict, DirVerdict::Valid, "{report:#?}");
    assert_eq!(report.warnings, []);
    let facts = report.facts.unwrap();
    let expected: Value =
        serde_json::from_slice(&fs::read(fixture_path("expected.json")).unwrap()).unwrap();
    assert_eq!(Some(facts.revision.0), expected["revision"].as_i64());
    let keys: Vec<Value> =
        serde_json::from_slice(&fs::read(fixture_path("keys.json")).unwrap()).unwrap();
    assert_eq!(facts.live_keys, Some(keys.len() as u64));
    assert_eq!(facts.possible_writes_in_wal, Some(0));
    assert_eq!(facts.storage_version.as_deref(), Some("3.6.0"));
    assert_eq!(facts.consistent_index, facts.last_wal_index);
    assert_eq!(facts.members[0].id, facts.member_id.unwrap());

    assert!(verify(&data, Depth::Sanity).unwrap().is_valid());
    let stop = CleanStop::observe(&data, "test").unwrap();
    assert!(stop.is_valid_for(&data));
}

#[test]
fn real_database_with_a_damaged_page_is_corrupt() {
    let (_place, data) = unpack_fixture();
    let db = data.join("member/snap/db");
    let bytes = fs::read(&db).unwrap();
    let pages = bytes.chunks(4096).enumerate().skip(2);
    let used: Vec<u64> = pages
        .filter(|(_, page)| [0x01, 0x02].contains(&page[8]))
        .map(|(at, _)| at as u64)
        .collect();
    let mut corrupt = 0;
    for page in &used {
        flip_byte(&db, page * 4096, 0x01);
        let report = verify(&data, Depth::Full).unwrap();
        // Free pages and pages of an older transaction are not checked.
        corrupt += u64::from(report.verdict == DirVerdict::Corrupt);
        if report.is_valid() {
            let facts = report.facts.unwrap();
            assert_eq!((facts.revision, facts.rows), (Revision(2435), Some(4677)));
        } else {
            assert_eq!(report.faults[0].what, FaultKind::Page);
            assert_eq!(report.faults[0].place, format!("page {page}"));
        }
        flip_byte(&db, page * 4096, 0x01);
    }
    assert!(corrupt > 100, "{corrupt} of {}", used.len());
}

#[test]
fn truncated_real_wal_is_detected_because_the_database_is_ahead() {
    let (_place, data) = unpack_fixture();
    let wal = data.join("member/wal/0000000000000000-0000000000000000.wal");
    set_length(&wal, 300_000);
    let report = verify(&data, Depth::Sanity).unwrap();
    assert_eq!(report.faults[0].what, FaultKind::IndexBeyondLog);
}
