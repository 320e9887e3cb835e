//! `list` shows the snapshots as chains.

use mainstay_verdict::Verdict;
use serde_json::json;

use crate::home::{Home, SNAPSHOT_DIR, expect_failure, expect_success};
use crate::support::{FIXTURES, FixtureState};

#[test]
fn every_fixture_is_restorable_up_to_its_revision() {
    for name in FIXTURES {
        let home = Home::from_fixture(name);
        let listing = expect_success(home.run_on_bucket("list", &[]), Verdict::Shown);
        let ranges = listing["restorable"].as_array().unwrap();
        assert_eq!(ranges.len(), 1, "{name}");
        assert_eq!(
            ranges[0]["to"],
            FixtureState::load(name).revision.0,
            "{name}"
        );
        assert_eq!(
            listing["snapshots"],
            home.list_names(SNAPSHOT_DIR).len(),
            "{name}"
        );
        assert_eq!(listing["foreign"], json!([]), "{name}");
        for chain in listing["chains"].as_array().unwrap() {
            assert_eq!(chain["reaches"], ranges[0]["to"], "{name}");
        }
    }
}

#[test]
fn table_lists_bases_and_long_table_lists_every_object() {
    let home = Home::from_fixture("overlap-3.5.30");
    let text = home.run_on_bucket("list", &[]).unwrap().text();
    assert_eq!(text.matches("Full-").count(), 2, "{text}");
    assert!(text.contains("restorable revisions: 674 to 2412"), "{text}");
    assert!(!text.contains("Incr-"), "{text}");
    let long = home.run_on_bucket("list", &["--long"]).unwrap().text();
    for name in home.list_names(SNAPSHOT_DIR) {
        assert!(
            long.contains(&format!("etcd-main/v2/{name}")),
            "{name}: {long}"
        );
    }
}

#[test]
fn missing_delta_is_a_gap_between_two_named_objects() {
    let home = Home::from_fixture("gzip-3.5.30");
    std::fs::remove_file(home.object_path(&home.find_name("Incr-00001545"))).unwrap();
    let outcome = home.run_on_bucket("list", &[]).unwrap();
    let expected = "revisions 1545 to 1938 are missing between \
                    Incr-00001114-00001544-1794795251.gz and Incr-00001939-00001969-1794795255.gz";
    assert!(outcome.text().contains(expected), "{}", outcome.text());
    let listing = outcome.to_json();
    assert_eq!(listing["restorable"], json!([{"from": 695, "to": 1544}]));
    assert_eq!(listing["chains"][0]["gaps"][0]["from"], 1545);
}

#[test]
fn foreign_objects_leftovers_and_other_prefixes_are_distinguished() {
    let home = Home::from_fixture("gzip-3.5.30");
    let base = home.find_name("Full-");
    std::fs::write(home.object_path("notes.txt"), b"mine").unwrap();
    home.rename_object(&base, "kept");
    std::fs::create_dir_all(home.object_path("Incr-00009000-00009001-1794795300.gz")).unwrap();
    let leftover = "Incr-00009000-00009001-1794795300.gz/0000000001";
    std::fs::write(home.object_path(leftover), b"part").unwrap();
    home.rename_object("kept", &base);
    for neighbour in ["etcd-main-events", "etcd", "etcd-main2"] {
        let folder = home.path("bucket").join(neighbour).join("v2");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("Full-00000000-00099999-1794799999.gz"), b"no").unwrap();
    }
    let outcome = home.run_on_bucket("list", &[]).unwrap();
    let listing = outcome.to_json();
    assert_eq!(listing["snapshots"], 6);
    assert_eq!(listing["foreign"][0]["key"], "etcd-main/v2/notes.txt");
    assert_eq!(listing["chunks"][0]["part"], 1);
    assert_eq!(listing["chunks"][0]["bytes"], 4);
    assert!(!outcome.to_json().to_string().contains("99999"));
    let text = outcome.text();
    assert!(
        text.contains("1 parts of interrupted uploads (4 B); 1 other objects"),
        "{text}"
    );
}

#[test]
fn v1_layout_and_final_suffix_are_supported() {
    let home = Home::from_fixture("zlib-3.5.16");
    let base = home.find_name("Full-");
    home.rename_object(&base, &format!("../v1/Backup-1794795267/{base}.final"));
    let listing = expect_success(home.run_on_bucket("list", &[]), Verdict::Shown);
    assert_eq!(listing["chains"][0]["isFinal"], true);
    assert_eq!(listing["chains"][0]["deltas"].as_array().unwrap().len(), 5);
    let key = listing["chains"][0]["base"]["key"].as_str().unwrap();
    assert!(
        key.starts_with("etcd-main/v1/Backup-1794795267/Full-"),
        "{key}"
    );
}

#[test]
fn deltas_without_a_base_are_listed_as_such() {
    let home = Home::from_fixture("gzip-3.5.30");
    std::fs::remove_file(home.object_path(&home.find_name("Full-"))).unwrap();
    let outcome = home.run_on_bucket("list", &[]).unwrap();
    assert!(outcome.text().contains("(none)"), "{}", outcome.text());
    assert!(
        outcome.text().contains("restorable revisions: none"),
        "{}",
        outcome.text()
    );
    assert_eq!(outcome.to_json()["chains"][0]["base"], json!(null));
}

#[test]
fn empty_prefix_is_no_backup() {
    let home = Home::new();
    let nothing = expect_failure(home.run_on_bucket("list", &[]), Verdict::NoBackup);
    assert!(
        nothing.reason().contains("Local bucket/etcd-main"),
        "{nothing}"
    );
    std::fs::create_dir_all(home.path(SNAPSHOT_DIR)).unwrap();
    std::fs::write(home.object_path("notes.txt"), b"mine").unwrap();
    let foreign = expect_failure(home.run_on_bucket("list", &[]), Verdict::NoBackup);
    assert!(
        foreign.reason().contains("1 other objects found"),
        "{foreign}"
    );
    assert_eq!(
        foreign.to_json()["foreign"][0]["key"],
        "etcd-main/v2/notes.txt"
    );
}
