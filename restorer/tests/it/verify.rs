//! `verify` verifies a backup and reports what is wrong with a damaged one.

use mainstay_restorer::failure::CommandFailure;
use mainstay_verdict::Verdict;

use crate::home::{Home, expect_failure, expect_success};
use crate::support::{FIXTURES, FixtureState};

fn expect_verify_failure(home: &Home, more: &[&str], verdict: Verdict) -> CommandFailure {
    expect_failure(home.run_on_bucket("verify", more), verdict)
}

#[test]
fn every_fixture_and_every_object_of_it_is_restorable() {
    for name in FIXTURES {
        let home = Home::from_fixture(name);
        let expected = FixtureState::load(name).revision.0;
        for scope in [[].as_slice(), &["--all"]] {
            let report = expect_success(home.run_on_bucket("verify", scope), Verdict::Restorable);
            assert_eq!(report["revision"], expected, "{name}");
            let objects = report["objects"].as_array().unwrap();
            assert!(
                objects.iter().all(|object| object["isSound"] == true),
                "{name}: {report}"
            );
            let object_count = if scope.is_empty() {
                report["deltas"].as_u64().unwrap() + 1
            } else {
                home.list_names(crate::home::SNAPSHOT_DIR).len() as u64
            };
            assert_eq!(objects.len() as u64, object_count, "{name}");
        }
    }
}

#[test]
fn report_lists_the_actual_content_of_each_object() {
    let home = Home::from_fixture("gzip-3.5.30");
    let report = expect_success(home.run_on_bucket("verify", &[]), Verdict::Restorable);
    let objects = report["objects"].as_array().unwrap();
    assert_eq!(objects[0]["name"], home.find_name("Full-"));
    assert_eq!(objects[0]["revision"], report["baseRevision"]);
    assert_eq!(objects[0]["isHashed"], true);
    assert_eq!(objects[1]["firstRevision"], 696);
    assert_eq!(objects[1]["lastRevision"], 1113);
    assert!(
        objects[1]["firstTime"]
            .as_str()
            .unwrap()
            .starts_with("2026-")
    );
    let contents = objects
        .iter()
        .map(|object| object["contentBytes"].as_u64().unwrap());
    assert!(contents.into_iter().all(|bytes| bytes > 1000));
}

#[test]
fn every_flipped_bit_and_truncation_of_an_object_is_found_and_named() {
    for fixture in FIXTURES {
        let intact = Home::from_fixture(fixture);
        let report = expect_success(intact.run_on_bucket("verify", &[]), Verdict::Restorable);
        for object in report["objects"].as_array().unwrap() {
            let name = object["name"].as_str().unwrap();
            let home = Home::from_fixture(fixture);
            let original = std::fs::read(home.object_path(name)).unwrap();
            let len = original.len();
            // The last bits of an LZW stream follow its end code and are ignored.
            let end = if fixture.starts_with("lzw") {
                len - 2
            } else {
                len - 1
            };
            for at in [len / 3, len / 2, len - 40, end] {
                home.modify_object(name, |bytes| bytes[at] ^= 0x10);
                let found = expect_verify_failure(&home, &[], Verdict::DamagedBackup);
                assert!(
                    found.reason().contains(name),
                    "{fixture} {name} {at}: {found}"
                );
                std::fs::write(home.object_path(name), &original).unwrap();
            }
            for keep in [0, 1, 40, len / 2, len - 32, len - 1] {
                home.modify_object(name, |bytes| bytes.truncate(keep));
                let found = expect_verify_failure(&home, &[], Verdict::DamagedBackup);
                assert!(
                    found.reason().contains(name),
                    "{fixture} {name} to {keep}: {found}"
                );
                std::fs::write(home.object_path(name), &original).unwrap();
            }
        }
    }
}

#[test]
fn damage_is_named_with_its_position_and_restorable_revisions() {
    let home = Home::from_fixture("gzip-3.5.30");
    let name = home.find_name("Incr-00001545");
    home.modify_object(&name, |bytes| bytes[500] ^= 1);
    let found = expect_verify_failure(&home, &[], Verdict::DamagedBackup);
    let text = found.to_string();
    assert!(text.contains(&name) && text.contains("byte"), "{text}");
    assert!(
        text.contains("695 to 1544") && text.contains("--to-revision 1544"),
        "{text}"
    );
    let report = found.to_json();
    let damaged: Vec<&serde_json::Value> = report["objects"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|object| object["isSound"] == false)
        .collect();
    assert_eq!(damaged.len(), 1);
    assert!(damaged[0]["fault"].as_str().unwrap().contains(&name));
    // The suggested revision is restorable.
    let rest = expect_success(
        home.run_on_bucket("verify", &["--to-revision", "1544"]),
        Verdict::Restorable,
    );
    assert_eq!(rest["revision"], 1544);
}

#[test]
fn damaged_duplicate_does_not_prevent_a_restore() {
    let home = Home::from_fixture("overlap-3.5.30");
    let report = expect_success(home.run_on_bucket("verify", &[]), Verdict::Restorable);
    let used = report["objects"].as_array().unwrap().last().unwrap()["name"].clone();
    let used = used.as_str().unwrap();
    home.modify_object(used, |bytes| bytes[600] ^= 1);
    let text = expect_verify_failure(&home, &[], Verdict::DamagedBackup).to_string();
    assert!(
        text.contains(used) && text.contains("the target is restorable from Full-"),
        "{text}"
    );
    // The suggested next step works.
    std::fs::remove_file(home.object_path(used)).unwrap();
    let again = expect_success(home.run_on_bucket("verify", &[]), Verdict::Restorable);
    assert_eq!(again["revision"], 2412);
}

#[test]
fn damage_outside_the_chain_is_found_only_when_reading_all_objects() {
    let home = Home::from_fixture("overlap-3.5.30");
    let report = expect_success(
        home.run_on_bucket("verify", &["--all"]),
        Verdict::Restorable,
    );
    let objects = report["objects"].as_array().unwrap();
    let spare = objects
        .iter()
        .find(|object| object["isInChain"] == false)
        .unwrap();
    let spare = spare["name"].as_str().unwrap();
    home.modify_object(spare, |bytes| bytes[600] ^= 1);
    expect_success(home.run_on_bucket("verify", &[]), Verdict::Restorable);
    let text = expect_verify_failure(&home, &["--all"], Verdict::DamagedBackup).to_string();
    assert!(
        text.contains(spare) && text.contains("revision 2412 is restorable"),
        "{text}"
    );
}

#[test]
fn missing_delta_is_incomplete_and_earlier_revisions_are_verified() {
    let home = Home::from_fixture("none-3.4.23");
    std::fs::remove_file(home.object_path(&home.find_name("Incr-00001223"))).unwrap();
    let found = expect_verify_failure(&home, &[], Verdict::Incomplete);
    let (after, before) = (
        home.find_name("Incr-00001132"),
        home.find_name("Incr-00001566"),
    );
    assert!(
        found.reason().contains("1223 to 1565 are missing"),
        "{found}"
    );
    assert!(
        found.reason().contains(&after) && found.reason().contains(&before),
        "{found}"
    );
    let part = expect_success(
        home.run_on_bucket("verify", &["--to-revision", "1222"]),
        Verdict::Restorable,
    );
    assert_eq!(part["revision"], 1222);
    // With --all the objects are read as well, and the verdict is the same.
    let all = expect_verify_failure(&home, &["--all"], Verdict::Incomplete);
    assert!(all.reason().contains("1223 to 1565 are missing"), "{all}");
    let read = all.to_json()["objects"].as_array().unwrap().len();
    assert_eq!(read, home.list_names(crate::home::SNAPSHOT_DIR).len());
}

#[test]
fn object_names_that_differ_from_their_content_are_detected() {
    // The name of a delta includes the revisions of the one before it, which is missing.
    let home = Home::from_fixture("gzip-3.5.30");
    std::fs::remove_file(home.object_path(&home.find_name("Incr-00001545"))).unwrap();
    let misnamed = "Incr-00001545-00001969-1794795255.gz";
    home.rename_object(&home.find_name("Incr-00001939"), misnamed);
    let found = expect_verify_failure(&home, &[], Verdict::Incomplete);
    assert!(
        found.reason().contains("1545 to 1938 are missing"),
        "{found}"
    );
    assert!(found.reason().contains(misnamed), "{found}");

    // The name of a delta has a higher last revision than its content.
    let home = Home::from_fixture("gzip-3.5.30");
    home.rename_object(
        &home.find_name("Incr-00001970"),
        "Incr-00001970-00002400-1794795257.gz",
    );
    let found = expect_verify_failure(&home, &[], Verdict::Incomplete);
    assert!(found.reason().contains("ends at revision 2385"), "{found}");

    // A full snapshot with the name of a delta, and vice versa.
    let home = Home::from_fixture("gzip-3.5.30");
    let disguised = "Incr-00002386-00002390-1794795290.gz";
    std::fs::copy(
        home.object_path(&home.find_name("Full-")),
        home.object_path(disguised),
    )
    .unwrap();
    assert!(
        expect_verify_failure(&home, &[], Verdict::DamagedBackup)
            .reason()
            .contains(disguised)
    );
    std::fs::remove_file(home.object_path(disguised)).unwrap();
    let disguised = "Full-00000000-00002390-1794795290.gz";
    std::fs::copy(
        home.object_path(&home.find_name("Incr-00001970")),
        home.object_path(disguised),
    )
    .unwrap();
    assert!(
        expect_verify_failure(&home, &[], Verdict::DamagedBackup)
            .reason()
            .contains(disguised)
    );
}

#[test]
fn base_newer_than_its_name_fills_the_gap_after_it() {
    let home = Home::from_fixture("gzip-3.5.30");
    home.rename_object(
        &home.find_name("Full-"),
        "Full-00000000-00000600-1794795243.gz",
    );
    let report = expect_success(home.run_on_bucket("verify", &[]), Verdict::Restorable);
    assert_eq!(report["revision"], 2385);
    assert!(report["baseRevision"].as_i64().unwrap() >= 695);
    let text = home.run_on_bucket("verify", &[]).unwrap().text();
    assert!(text.contains("newer than in its name"), "{text}");
    // Without the first delta there is a gap that the base does not fill.
    std::fs::remove_file(home.object_path(&home.find_name("Incr-00000696"))).unwrap();
    let found = expect_verify_failure(&home, &[], Verdict::Incomplete);
    assert!(found.reason().contains("Full-00000000-00000600"), "{found}");
    assert!(found.reason().contains("to 1113 are missing"), "{found}");
}

#[test]
fn v1_layout_and_mixed_compressions_are_verified() {
    let home = Home::from_fixture("lzw-3.5.30");
    for name in home.list_names(crate::home::SNAPSHOT_DIR) {
        home.rename_object(&name, &format!("../v1/Backup-1794795291/{name}"));
    }
    let report = expect_success(
        home.run_on_bucket("verify", &["--all"]),
        Verdict::Restorable,
    );
    assert_eq!(
        report["revision"],
        FixtureState::load("lzw-3.5.30").revision.0
    );
}

#[test]
fn unknown_compression_is_named_and_not_skipped() {
    let home = Home::from_fixture("gzip-3.5.30");
    home.rename_object(
        &home.find_name("Incr-00001970"),
        "Incr-00001970-00002385-1794795257.xz",
    );
    let found = expect_verify_failure(&home, &[], Verdict::DamagedBackup);
    assert!(
        found
            .reason()
            .contains("Incr-00001970-00002385-1794795257.xz"),
        "{found}"
    );
    assert!(
        found.reason().contains("unsupported compression .xz"),
        "{found}"
    );
}

#[test]
fn base_without_a_hash_is_refused_unless_hash_check_is_skipped() {
    let home = Home::from_fixture("none-3.4.23");
    let name = home.find_name("Full-");
    home.modify_object(&name, |bytes| bytes.truncate(bytes.len() - 32));
    let found = expect_verify_failure(&home, &[], Verdict::DamagedBackup);
    assert!(
        found.reason().contains(&name) && found.reason().contains("no hash"),
        "{found}"
    );
    let report = expect_success(
        home.run_on_bucket("verify", &["--skip-hash-check"]),
        Verdict::Restorable,
    );
    assert_eq!(report["objects"][0]["isHashed"], false);
    assert_eq!(
        report["revision"],
        FixtureState::load("none-3.4.23").revision.0
    );
}

#[test]
fn unreachable_target_is_refused_with_the_restorable_range() {
    let home = Home::from_fixture("gzip-3.5.30");
    let found = expect_verify_failure(&home, &["--to-revision", "9999"], Verdict::Incomplete);
    assert!(found.reason().contains("695 to 2385"), "{found}");
    let found = expect_verify_failure(
        &home,
        &["--to-time", "2020-01-01T00:00:00Z"],
        Verdict::Incomplete,
    );
    assert!(
        found.reason().contains("restorable times: 2026-"),
        "{found}"
    );
    let report = expect_success(home.run_on_bucket("verify", &[]), Verdict::Restorable);
    // The time of the last event before the third delta: the result has all of the second and little or nothing of it.
    let third = &report["objects"][3];
    let first_of_third = third["firstRevision"].as_i64().unwrap();
    let second = report["objects"][2]["lastTime"].as_str().unwrap();
    let reached = expect_success(
        home.run_on_bucket("verify", &["--to-time", second]),
        Verdict::Restorable,
    );
    let revision = reached["revision"].as_i64().unwrap();
    assert!(
        (first_of_third - 1..first_of_third + 50).contains(&revision),
        "{revision}"
    );
}

#[test]
fn empty_store_is_no_backup_and_deltas_alone_are_incomplete() {
    expect_verify_failure(&Home::new(), &[], Verdict::NoBackup);
    expect_verify_failure(&Home::new(), &["--all"], Verdict::NoBackup);
    let home = Home::from_fixture("gzip-3.5.30");
    std::fs::remove_file(home.object_path(&home.find_name("Full-"))).unwrap();
    let found = expect_verify_failure(&home, &[], Verdict::Incomplete);
    assert!(found.reason().contains("no full snapshot"), "{found}");
}
