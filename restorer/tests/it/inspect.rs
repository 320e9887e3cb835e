//! `inspect` reports the same values as a live etcd.

use std::io::Read;
use std::path::{Path, PathBuf};

use mainstay_restorer::failure::CommandFailure;
use mainstay_restorer::outcome::CommandOutcome;
use mainstay_verdict::Verdict;
use serde_json::json;

use crate::home::{Home, SNAPSHOT_DIR, expect_failure, expect_success};
use crate::support::{FIXTURES, FixtureState, fixture_path};

/// The smallest database of the format documentation: one key, consistent index and term.
const SMALLEST_ROOT: &str = concat!(
    "0200000000000000",
    "0200",
    "0200",
    "00000000",
    "01000000",
    "20000000",
    "03000000",
    "4d000000",
    "01000000",
    "60000000",
    "04000000",
    "64000000",
    "6b6579",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
    "0200",
    "0100",
    "00000000",
    "00000000",
    "10000000",
    "11000000",
    "0c000000",
    "00000000000000025f0000000000000000",
    "0a01611002180220012a0131",
    "6d657461",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
    "0200",
    "0200",
    "00000000",
    "00000000",
    "20000000",
    "10000000",
    "08000000",
    "00000000",
    "28000000",
    "04000000",
    "08000000",
    "636f6e73697374656e745f696e646578",
    "0000000000000001",
    "7465726d",
    "0000000000000001",
);

fn smallest_database() -> Vec<u8> {
    let meta = |id: u8, txid: u8, checksum: &str| {
        let mut page = hex::decode(format!(
            "{id:02x}000000000000000400000000000000edda0ced0200000000100000000000000200000000000000\
             0000000000000000ffffffffffffffff0300000000000000{txid:02x}00000000000000{checksum}"
        ))
        .unwrap();
        page.resize(4096, 0);
        page
    };
    let mut root = hex::decode(SMALLEST_ROOT).unwrap();
    root.resize(4096, 0);
    [
        meta(0, 2, "4067af04a0b168e3"),
        meta(1, 1, "a3457d25bb065940"),
        root,
    ]
    .concat()
}

fn write_file(home: &Home, name: &str, bytes: &[u8]) -> PathBuf {
    let path = home.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

fn inspect_file(home: &Home, path: &Path, more: &[&str]) -> Result<CommandOutcome, CommandFailure> {
    let flags = ["inspect", "--snapshot", path.to_str().unwrap()];
    home.run(&[&flags, more].concat())
}

#[test]
fn documented_database_has_the_documented_hashes() {
    let home = Home::new();
    let path = write_file(&home, "db", &smallest_database());
    let report = expect_success(inspect_file(&home, &path, &[]), Verdict::Shown);
    assert_eq!(report["status"]["hashHex"], "629f20a");
    assert_eq!(report["status"]["totalKey"], 3);
    assert_eq!(report["status"]["totalSize"], 3 * 4096);
    let hash = json!({"hash": 2_587_454_935u32, "revision": 2, "compactRevision": -1});
    assert_eq!(report["hashKv"], hash);
    assert_eq!(
        (&report["consistentIndex"], &report["term"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(report["snapshotHash"], "absent");
    assert_eq!(report["database"]["pagesFree"], 0);
    assert_eq!(report["keys"]["largest"], json!([{"key": "a", "bytes": 2}]));
}

#[test]
fn backup_has_the_hash_and_the_keys_of_its_source() {
    for name in FIXTURES {
        let home = Home::from_fixture(name);
        let expected = FixtureState::load(name);
        let report = expect_success(home.run_on_bucket("inspect", &[]), Verdict::Shown);
        assert_eq!(report["revision"], expected.revision.0, "{name}");
        assert_eq!(report["hashKv"]["hash"], expected.hash, "{name}");
        assert_eq!(report["keys"]["live"], expected.keys, "{name}");
        assert_eq!(
            report["leases"]["attachedKeys"], expected.leased_keys,
            "{name}"
        );
        assert_eq!(report["leases"]["keysOnUnknownLeases"], 0, "{name}");
        assert_eq!(report["members"].as_array().unwrap().len(), 1, "{name}");
        let counted = report["keys"]["prefixes"].as_array().unwrap();
        let counted: u64 = counted
            .iter()
            .map(|row| row["keys"].as_u64().unwrap())
            .sum();
        if report["keys"]["otherPrefixes"] == 0 {
            assert_eq!(counted, expected.keys, "{name}");
        }
        assert_eq!(report["auth"]["isEnabled"], false, "{name}");
        assert_eq!(report["alarms"], json!([]), "{name}");
    }
}

#[test]
fn to_revision_and_revision_flags_give_the_same_earlier_state() {
    let home = Home::from_fixture("gzip-3.5.30");
    let cut = expect_success(
        home.run_on_bucket("inspect", &["--to-revision", "1500"]),
        Verdict::Shown,
    );
    let viewed = expect_success(
        home.run_on_bucket("inspect", &["--revision", "1500"]),
        Verdict::Shown,
    );
    assert_eq!(cut["revision"], 1500);
    assert_eq!(viewed["revision"], 2385);
    assert_eq!(cut["hashKv"], viewed["hashKv"]);
    assert_eq!(cut["keys"]["live"], viewed["keys"]["live"]);
    assert_eq!(cut["keys"]["prefixes"], viewed["keys"]["prefixes"]);
    let found = expect_failure(
        home.run_on_bucket("inspect", &["--revision", "2386"]),
        Verdict::Usage,
    );
    assert!(found.reason().contains("--revision 2386"), "{found}");
}

#[test]
fn snapshot_file_is_inspected_and_its_hash_compared() {
    for name in ["none-3.4.23", "gzip-3.5.30", "lzw-3.5.30"] {
        let home = Home::from_fixture(name);
        let base = home.find_name("Full-");
        let path = home.object_path(&base);
        let report = expect_success(inspect_file(&home, &path, &[]), Verdict::Shown);
        assert_eq!(report["snapshotHash"], "verified", "{name}");
        assert!(report["revision"].as_i64().unwrap() >= 684, "{name}");

        home.modify_object(&base, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        });
        let found = expect_failure(inspect_file(&home, &path, &[]), Verdict::DamagedBackup);
        assert!(found.reason().contains(&base), "{found}");
    }
    let home = Home::from_fixture("none-3.4.23");
    let base = home.find_name("Full-");
    home.modify_object(&base, |bytes| bytes.truncate(bytes.len() - 7));
    let found = expect_failure(
        inspect_file(&home, &home.object_path(&base), &[]),
        Verdict::DamagedBackup,
    );
    assert!(
        found.reason().contains(&base) && found.reason().contains("bytes"),
        "{found}"
    );
}

/// Unpacks the database of the data directory of a 3.6 server.
fn extract_data_dir(home: &Home) -> PathBuf {
    let packed = std::fs::File::open(fixture_path("gzip-3.6.14").join("datadir.tar.gz")).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed));
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.path().unwrap().ends_with("member/snap/db") {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            write_file(home, "data/member/snap/db", &bytes);
            return home.path("data");
        }
    }
    panic!("no database in the fixture")
}

#[test]
fn real_data_directory_has_the_hash_its_server_reported() {
    let home = Home::new();
    let directory = extract_data_dir(&home);
    let flags = ["inspect", "--data-dir", directory.to_str().unwrap()];
    let report = expect_success(home.run(&flags), Verdict::Shown);
    let expected = FixtureState::load("gzip-3.6.14");
    assert_eq!(report["hashKv"]["hash"], expected.hash);
    assert_eq!(report["revision"], expected.revision.0);
    assert_eq!(report["status"]["totalKeySince36"], expected.keys);
    assert_eq!(report["storageVersion"], "3.6.0");
    assert_eq!(report["clusterVersion"], "3.6.0");
    assert_eq!(report["leases"]["attachedKeys"], expected.leased_keys);
    assert!(
        report["members"][0]["peerURLs"][0]
            .as_str()
            .unwrap()
            .starts_with("http")
    );
    let database = &report["database"];
    let number = |field: &str| database[field].as_u64().unwrap();
    assert_eq!(number("pagesInUse") + number("pagesFree"), number("pages"));
    assert!(number("fileBytes") >= number("pages") * 4096);
    let text = home.run(&flags).unwrap().text();
    assert!(text.contains(&expected.hash.to_string()), "{text}");
}

#[test]
fn database_in_use_is_refused() {
    let home = Home::new();
    let directory = extract_data_dir(&home);
    let flags = ["inspect", "--data-dir", directory.to_str().unwrap()];
    let held = mainstay_datadir::lock_database(&directory.join("member/snap/db")).unwrap();
    let found = expect_failure(home.run(&flags), Verdict::InUse);
    assert!(found.reason().contains("member/snap/db"), "{found}");
    assert!(found.to_string().contains("snapshot save"), "{found}");
    drop(held);
    expect_success(home.run(&flags), Verdict::Shown);
}

#[test]
fn damaged_data_directory_is_corruption_with_the_page() {
    let home = Home::new();
    let directory = extract_data_dir(&home);
    let db = directory.join("member/snap/db");
    let mut bytes = std::fs::read(&db).unwrap();
    let report = expect_success(
        home.run(&["inspect", "--data-dir", directory.to_str().unwrap()]),
        Verdict::Shown,
    );
    let pages = report["database"]["pages"].as_u64().unwrap();
    for page in 2..usize::try_from(pages).unwrap() {
        bytes[page * 4096 + 8] ^= 0x40; // the type of each page
    }
    std::fs::write(&db, bytes).unwrap();
    let flags = ["inspect", "--data-dir", directory.to_str().unwrap()];
    let found = expect_failure(home.run(&flags), Verdict::Corrupt);
    assert!(found.reason().contains("page"), "{found}");
    assert!(
        found.reason().contains(directory.to_str().unwrap()),
        "{found}"
    );
}

#[test]
fn absent_input_fails_with_a_specific_verdict() {
    let home = Home::new();
    let nowhere = home.path("nowhere");
    let flags = ["inspect", "--data-dir", nowhere.to_str().unwrap()];
    let found = expect_failure(home.run(&flags), Verdict::Missing);
    assert!(found.reason().contains("nowhere"), "{found}");
    let found = expect_failure(inspect_file(&home, &nowhere, &[]), Verdict::Usage);
    assert!(found.reason().contains("nowhere"), "{found}");
    expect_failure(home.run_on_bucket("inspect", &[]), Verdict::NoBackup);
}

#[test]
fn damaged_backup_is_named_by_its_object() {
    let home = Home::from_fixture("gzip-3.5.30");
    let name = home.find_name("Incr-00001545");
    home.modify_object(&name, |bytes| bytes[500] ^= 1);
    let found = expect_failure(home.run_on_bucket("inspect", &[]), Verdict::DamagedBackup);
    assert!(found.reason().contains(&name), "{found}");
    assert_eq!(home.list_names(SNAPSHOT_DIR).len(), 6);
}
