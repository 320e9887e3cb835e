//! `verify` proves a backup, and tells what is wrong with a damaged one.

use mainstay_restorer::failure::{Failure, Verdict};

use crate::home::{Home, failure, success};
use crate::support::{Expected, FIXTURES};

fn refused(home: &Home, more: &[&str], verdict: Verdict) -> Failure {
    failure(home.on_bucket("verify", more), verdict)
}

#[test]
fn every_fixture_is_restorable_at_its_revision_and_so_is_every_object_of_it() {
    for name in FIXTURES {
        let home = Home::of_fixture(name);
        let expected = Expected::of(name).revision.0;
        for scope in [[].as_slice(), &["--all"]] {
            let report = success(home.on_bucket("verify", scope), Verdict::Restorable);
            assert_eq!(report["revision"], expected, "{name}");
            let objects = report["objects"].as_array().unwrap();
            assert!(
                objects.iter().all(|object| object["isSound"] == true),
                "{name}: {report}"
            );
            let wanted = if scope.is_empty() {
                report["deltas"].as_u64().unwrap() + 1
            } else {
                home.names(crate::home::FOLDER).len() as u64
            };
            assert_eq!(objects.len() as u64, wanted, "{name}");
        }
    }
}

#[test]
fn the_report_tells_what_each_object_really_holds() {
    let home = Home::of_fixture("gzip-3.5.30");
    let report = success(home.on_bucket("verify", &[]), Verdict::Restorable);
    let objects = report["objects"].as_array().unwrap();
    assert_eq!(objects[0]["name"], home.name("Full-"));
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
fn every_flipped_bit_and_every_cut_of_every_object_is_found_and_named() {
    for fixture in FIXTURES {
        let sound = Home::of_fixture(fixture);
        let report = success(sound.on_bucket("verify", &[]), Verdict::Restorable);
        for object in report["objects"].as_array().unwrap() {
            let name = object["name"].as_str().unwrap();
            let home = Home::of_fixture(fixture);
            let original = std::fs::read(home.object(name)).unwrap();
            let len = original.len();
            // The last bits of an LZW stream lie behind its end code and mean nothing.
            let end = if fixture.starts_with("lzw") {
                len - 2
            } else {
                len - 1
            };
            for at in [len / 3, len / 2, len - 40, end] {
                home.damage(name, |bytes| bytes[at] ^= 0x10);
                let found = refused(&home, &[], Verdict::DamagedBackup);
                assert!(
                    found.reason().contains(name),
                    "{fixture} {name} {at}: {found}"
                );
                std::fs::write(home.object(name), &original).unwrap();
            }
            for keep in [0, 1, 40, len / 2, len - 32, len - 1] {
                home.damage(name, |bytes| bytes.truncate(keep));
                let found = refused(&home, &[], Verdict::DamagedBackup);
                assert!(
                    found.reason().contains(name),
                    "{fixture} {name} to {keep}: {found}"
                );
                std::fs::write(home.object(name), &original).unwrap();
            }
        }
    }
}

#[test]
fn damage_is_named_with_its_place_and_with_what_can_be_had() {
    let home = Home::of_fixture("gzip-3.5.30");
    let name = home.name("Incr-00001545");
    home.damage(&name, |bytes| bytes[500] ^= 1);
    let found = refused(&home, &[], Verdict::DamagedBackup);
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
    // And indeed:
    let rest = success(
        home.on_bucket("verify", &["--to-revision", "1544"]),
        Verdict::Restorable,
    );
    assert_eq!(rest["revision"], 1544);
}

#[test]
fn a_damaged_duplicate_can_be_done_without() {
    let home = Home::of_fixture("overlap-3.5.30");
    let report = success(home.on_bucket("verify", &[]), Verdict::Restorable);
    let used = report["objects"].as_array().unwrap().last().unwrap()["name"].clone();
    let used = used.as_str().unwrap();
    home.damage(used, |bytes| bytes[600] ^= 1);
    let text = refused(&home, &[], Verdict::DamagedBackup).to_string();
    assert!(
        text.contains(used) && text.contains("the target can be reached from Full-"),
        "{text}"
    );
    // The advice works.
    std::fs::remove_file(home.object(used)).unwrap();
    let again = success(home.on_bucket("verify", &[]), Verdict::Restorable);
    assert_eq!(again["revision"], 2412);
}

#[test]
fn damage_outside_the_chain_shows_only_when_all_objects_are_read() {
    let home = Home::of_fixture("overlap-3.5.30");
    let report = success(home.on_bucket("verify", &["--all"]), Verdict::Restorable);
    let objects = report["objects"].as_array().unwrap();
    let spare = objects
        .iter()
        .find(|object| object["isInChain"] == false)
        .unwrap();
    let spare = spare["name"].as_str().unwrap();
    home.damage(spare, |bytes| bytes[600] ^= 1);
    success(home.on_bucket("verify", &[]), Verdict::Restorable);
    let text = refused(&home, &["--all"], Verdict::DamagedBackup).to_string();
    assert!(
        text.contains(spare) && text.contains("revision 2412 is restorable"),
        "{text}"
    );
}

#[test]
fn a_missing_delta_is_incomplete_and_what_is_before_it_can_be_verified() {
    let home = Home::of_fixture("none-3.4.23");
    std::fs::remove_file(home.object(&home.name("Incr-00001223"))).unwrap();
    let found = refused(&home, &[], Verdict::Incomplete);
    let (after, before) = (home.name("Incr-00001132"), home.name("Incr-00001566"));
    assert!(
        found.reason().contains("1223 to 1565 are missing"),
        "{found}"
    );
    assert!(
        found.reason().contains(&after) && found.reason().contains(&before),
        "{found}"
    );
    let part = success(
        home.on_bucket("verify", &["--to-revision", "1222"]),
        Verdict::Restorable,
    );
    assert_eq!(part["revision"], 1222);
    // With --all the objects are read all the same, and the verdict stays.
    let all = refused(&home, &["--all"], Verdict::Incomplete);
    assert!(all.reason().contains("1223 to 1565 are missing"), "{all}");
    let read = all.to_json()["objects"].as_array().unwrap().len();
    assert_eq!(read, home.names(crate::home::FOLDER).len());
}

#[test]
fn names_that_lie_about_their_content_are_found_out() {
    // A delta that claims the revisions of the one before it, which is gone.
    let home = Home::of_fixture("gzip-3.5.30");
    std::fs::remove_file(home.object(&home.name("Incr-00001545"))).unwrap();
    let liar = "Incr-00001545-00001969-1794795255.gz";
    home.rename(&home.name("Incr-00001939"), liar);
    let found = refused(&home, &[], Verdict::Incomplete);
    assert!(
        found.reason().contains("1545 to 1938 are missing"),
        "{found}"
    );
    assert!(found.reason().contains(liar), "{found}");

    // One that claims to go further than it does.
    let home = Home::of_fixture("gzip-3.5.30");
    home.rename(
        &home.name("Incr-00001970"),
        "Incr-00001970-00002400-1794795257.gz",
    );
    let found = refused(&home, &[], Verdict::Incomplete);
    assert!(found.reason().contains("end at revision 2385"), "{found}");

    // A full snapshot under the name of a delta, and the other way round.
    let home = Home::of_fixture("gzip-3.5.30");
    let disguised = "Incr-00002386-00002390-1794795290.gz";
    std::fs::copy(home.object(&home.name("Full-")), home.object(disguised)).unwrap();
    assert!(
        refused(&home, &[], Verdict::DamagedBackup)
            .reason()
            .contains(disguised)
    );
    std::fs::remove_file(home.object(disguised)).unwrap();
    let disguised = "Full-00000000-00002390-1794795290.gz";
    std::fs::copy(
        home.object(&home.name("Incr-00001970")),
        home.object(disguised),
    )
    .unwrap();
    assert!(
        refused(&home, &[], Verdict::DamagedBackup)
            .reason()
            .contains(disguised)
    );
}

#[test]
fn a_base_newer_than_its_name_fills_the_hole_behind_it() {
    let home = Home::of_fixture("gzip-3.5.30");
    home.rename(&home.name("Full-"), "Full-00000000-00000600-1794795243.gz");
    let report = success(home.on_bucket("verify", &[]), Verdict::Restorable);
    assert_eq!(report["revision"], 2385);
    assert!(report["baseRevision"].as_i64().unwrap() >= 695);
    let text = home.on_bucket("verify", &[]).unwrap().text();
    assert!(text.contains("newer than its name"), "{text}");
    // Without its first delta the hole is real.
    std::fs::remove_file(home.object(&home.name("Incr-00000696"))).unwrap();
    let found = refused(&home, &[], Verdict::Incomplete);
    assert!(found.reason().contains("Full-00000000-00000600"), "{found}");
    assert!(found.reason().contains("to 1113 are missing"), "{found}");
}

#[test]
fn the_old_layout_and_mixed_compressions_are_verified() {
    let home = Home::of_fixture("lzw-3.5.30");
    for name in home.names(crate::home::FOLDER) {
        home.rename(&name, &format!("../v1/Backup-1794795291/{name}"));
    }
    let report = success(home.on_bucket("verify", &["--all"]), Verdict::Restorable);
    assert_eq!(report["revision"], Expected::of("lzw-3.5.30").revision.0);
}

#[test]
fn a_compression_nobody_knows_is_named_and_not_left_out() {
    let home = Home::of_fixture("gzip-3.5.30");
    home.rename(
        &home.name("Incr-00001970"),
        "Incr-00001970-00002385-1794795257.xz",
    );
    let found = refused(&home, &[], Verdict::DamagedBackup);
    assert!(
        found
            .reason()
            .contains("Incr-00001970-00002385-1794795257.xz"),
        "{found}"
    );
    assert!(
        found.reason().contains("compression .xz is not known"),
        "{found}"
    );
}

#[test]
fn a_base_without_a_hash_is_refused_unless_told_otherwise() {
    let home = Home::of_fixture("none-3.4.23");
    let name = home.name("Full-");
    home.damage(&name, |bytes| bytes.truncate(bytes.len() - 32));
    let found = refused(&home, &[], Verdict::DamagedBackup);
    assert!(
        found.reason().contains(&name) && found.reason().contains("no hash"),
        "{found}"
    );
    let report = success(
        home.on_bucket("verify", &["--skip-hash-check"]),
        Verdict::Restorable,
    );
    assert_eq!(report["objects"][0]["isHashed"], false);
    assert_eq!(report["revision"], Expected::of("none-3.4.23").revision.0);
}

#[test]
fn moments_and_revisions_out_of_reach_are_refused_with_what_can_be_had() {
    let home = Home::of_fixture("gzip-3.5.30");
    let found = refused(&home, &["--to-revision", "9999"], Verdict::Incomplete);
    assert!(found.reason().contains("695 to 2385"), "{found}");
    let found = refused(
        &home,
        &["--to-time", "2020-01-01T00:00:00Z"],
        Verdict::Incomplete,
    );
    assert!(found.reason().contains("restorable: 2026-"), "{found}");
    let report = success(home.on_bucket("verify", &[]), Verdict::Restorable);
    // The moment the third delta begins: what was before it is reached, and nothing of it is.
    let third = &report["objects"][3];
    let first_of_third = third["firstRevision"].as_i64().unwrap();
    let second = report["objects"][2]["lastTime"].as_str().unwrap();
    let reached = success(
        home.on_bucket("verify", &["--to-time", second]),
        Verdict::Restorable,
    );
    let revision = reached["revision"].as_i64().unwrap();
    assert!(
        (first_of_third - 1..first_of_third + 50).contains(&revision),
        "{revision}"
    );
}

#[test]
fn an_empty_store_is_no_backup_and_deltas_alone_are_incomplete() {
    refused(&Home::new(), &[], Verdict::NoBackup);
    refused(&Home::new(), &["--all"], Verdict::NoBackup);
    let home = Home::of_fixture("gzip-3.5.30");
    std::fs::remove_file(home.object(&home.name("Full-"))).unwrap();
    let found = refused(&home, &[], Verdict::Incomplete);
    assert!(found.reason().contains("no full snapshot"), "{found}");
}
