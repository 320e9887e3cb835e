//! Damaged data directories: the exact verdict, and an unchanged volume.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mainstay_datadir::CleanStop;
use mainstay_testkit::each_version;
use mainstay_verdict::{DataState, VerificationDepth};
use serde_json::json;

use super::super::testbed::{InitResult, InitTestbed};
use super::{BUCKET_FLAGS, ETCD_VERSION, count_keys, start_one_member};

/// Path of the first WAL segment of a member.
fn wal_path(data_dir: &Path) -> PathBuf {
    data_dir.join("member/wal/0000000000000000-0000000000000000.wal")
}

fn database_path(data_dir: &Path) -> PathBuf {
    data_dir.join("member/snap/db")
}

fn modify_file(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Returns the length of the written part of a WAL segment; etcd preallocates zeros after it.
fn written_len(bytes: &[u8]) -> usize {
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    (last + 1).next_multiple_of(8)
}

/// Overwrites the id of every page that contains the key, including the one in use.
fn break_pages_with_keys(data_dir: &Path) {
    modify_file(&database_path(data_dir), |bytes| {
        let size = u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize;
        let mut broken = 0;
        for page in bytes.chunks_mut(size) {
            if page.windows(5).any(|window| window == b"key-0") {
                page[..8].fill(0xee);
                broken += 1;
            }
        }
        assert!(broken > 0, "no page contains the key");
    });
}

fn truncate_database(data_dir: &Path) {
    modify_file(&database_path(data_dir), |bytes| {
        bytes.truncate(bytes.len() / 2);
    });
}

/// Flips a bit of a record in the middle of the WAL, which its checksum detects.
fn flip_wal_bit(data_dir: &Path) {
    modify_file(&wal_path(data_dir), |bytes| {
        let mut windows = bytes.windows(5);
        let key = windows.position(|window| window == b"key-2").unwrap();
        bytes[key] ^= 1;
    });
}

/// Zeros half of the WAL, far more than a crash can: entries of the database are missing in the WAL.
fn zero_wal_tail(data_dir: &Path) {
    modify_file(&wal_path(data_dir), |bytes| {
        let end = written_len(bytes);
        bytes[end / 2..].fill(0);
    });
}

fn delete_wal(data_dir: &Path) {
    fs::remove_dir_all(data_dir.join("member/wal")).unwrap();
}

fn delete_database(data_dir: &Path) {
    fs::remove_file(database_path(data_dir)).unwrap();
}

type DamageCase = (fn(&Path), &'static str);

/// Each kind of damage with the file that the verdict must name.
const DAMAGE_CASES: [DamageCase; 6] = [
    (break_pages_with_keys, "member/snap/db, page "),
    (truncate_database, "member/snap/db"),
    (
        flip_wal_bit,
        "member/wal/0000000000000000-0000000000000000.wal, byte ",
    ),
    (zero_wal_tail, "member/"),
    (delete_wal, "member/wal"),
    (delete_database, "member/snap/db"),
];

/// Restores the volume of the first member from a copy.
fn restore_volume(stage: &InitTestbed, copy: &Path) {
    let volume = stage.volume(0);
    fs::remove_dir_all(&volume).unwrap();
    let copied = Command::new("cp").arg("-a").arg(copy).arg(&volume).status();
    assert!(copied.unwrap().success());
}

/// Checks the whole message, except for the faults and the facts that could still be read.
fn assert_restore_required(init_result: &InitResult, place: &str) {
    let reason = init_result.json["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.starts_with("data of member etcd-0 is corrupt: ") && reason.contains(place),
        "{reason}"
    );
    let data = init_result.json["init"]["data"].clone();
    assert_eq!(data["state"], "corrupt", "{data}");
    let expected = json!({
        "verdict": "restore-required",
        "reason": reason,
        "nextStep": "wait for the controller to restore, or run `mainstay-restorer restore` on this volume",
        "init": {
            "version": 1,
            "member": "etcd-0",
            "decision": "restoreRequired",
            "cause": "dataCorrupt",
            "data": data,
            "cluster": {"state": "unreachable"},
            "backup": {"state": "present", "newestRevision": 2385},
        },
    });
    assert_eq!(init_result.json, expected);
}

each_version! {
    async fn damage_of_the_only_copy_is_reported_and_nothing_is_changed(version) {
        let stage = InitTestbed::with_fixture(version, 1, "gzip-3.5.30");
        let (etcd, _) = start_one_member(&stage).await;
        etcd.stop();
        fs::remove_file(stage.config_path(0)).unwrap();
        let copy = stage.home.path("copy");
        fs::rename(stage.volume(0), &copy).unwrap();
        for (damage, place) in DAMAGE_CASES {
            restore_volume(&stage, &copy);
            damage(&stage.data_dir(0));
            let before = stage.read_volume(0);
            let init_result = stage.run_init(0, &BUCKET_FLAGS);
            assert_eq!(init_result.code, 40, "{}", init_result.json);
            assert_restore_required(&init_result, place);
            assert_eq!(stage.read_volume(0), before, "{place} was touched");
            assert_eq!(stage.read_config(0), None, "etcd would start");
        }
    }

    async fn what_a_killed_etcd_leaves_is_verified_in_full_and_served(version) {
        let stage = InitTestbed::new(version, 1);
        let (etcd, _) = start_one_member(&stage).await;
        drop(etcd); // kill -9
        // A write torn by the crash: the length of a record, and only a part of it.
        modify_file(&wal_path(&stage.data_dir(0)), |bytes| {
            let end = written_len(bytes);
            bytes[end..end + 8].copy_from_slice(&4096u64.to_le_bytes());
            bytes[end + 8..end + 64].fill(0x55);
        });
        let before = stage.read_volume(0);
        let init_result = stage.run_init(0, &[]);
        assert_eq!(init_result.summary(), (0, "start", ""), "{}", init_result.json);
        assert_eq!(init_result.report().data.verified, Some(VerificationDepth::Full));
        assert_eq!(stage.read_volume(0), before, "etcd repairs its WAL, init does not");
        let _etcd = stage.start_etcd(0);
        assert_eq!(count_keys(&mut stage.wait_for_client(0).await).await, 5);
    }

    async fn after_an_orderly_stop_the_data_is_verified_quickly_and_once_only(version) {
        let stage = InitTestbed::new(version, 1);
        let (etcd, _) = start_one_member(&stage).await;
        etcd.stop();
        let note = CleanStop::observe(&stage.data_dir(0), "a test").unwrap();
        note.write(&stage.data_dir(0)).unwrap();
        let quick = stage.run_init(0, &[]).report();
        assert_eq!(quick.data.verified, Some(VerificationDepth::Quick));
        assert!(quick.data.revision >= Some(6), "{quick:?}");
        let again = stage.run_init(0, &[]).report();
        assert_eq!(again.data.verified, Some(VerificationDepth::Full));
        assert_eq!((again.data.revision, again.data.member_id), (quick.data.revision, quick.data.member_id));
        let _etcd = stage.start_etcd(0);
        assert_eq!(count_keys(&mut stage.wait_for_client(0).await).await, 5);
    }
}

#[tokio::test]
async fn invalid_clean_stop_record_does_not_shorten_verification() {
    let stage = InitTestbed::with_fixture(ETCD_VERSION, 1, "gzip-3.5.30");
    let (etcd, _) = start_one_member(&stage).await;
    etcd.stop();
    let note = CleanStop::observe(&stage.data_dir(0), "a test").unwrap();
    let etcd = stage.init_and_start(0);
    let mut client = stage.wait_for_client(0).await;
    client.put("later", "value", None).await.unwrap();
    etcd.stop();
    note.write(&stage.data_dir(0)).unwrap();
    let init_result = stage.run_init(0, &[]);
    assert_eq!(
        init_result.summary(),
        (0, "start", ""),
        "{}",
        init_result.json
    );
    assert_eq!(
        init_result.report().data.verified,
        Some(VerificationDepth::Full)
    );
    // An unreadable marker is ignored as well; a directory cannot even be removed.
    let file = stage.volume(0).join("new.etcd.clean-stop");
    for make in [
        |file: &Path| fs::write(file, "{".repeat(1 << 20)).unwrap(),
        |file: &Path| fs::create_dir(file).unwrap(),
    ] {
        make(&file);
        let init_result = stage.run_init(0, &[]);
        assert_eq!(
            init_result.summary(),
            (0, "start", ""),
            "{}",
            init_result.json
        );
        assert_eq!(
            init_result.report().data.verified,
            Some(VerificationDepth::Full)
        );
    }
}

#[tokio::test]
async fn damaged_data_without_a_backup_is_refused() {
    let stage = InitTestbed::new(ETCD_VERSION, 1);
    let (etcd, _) = start_one_member(&stage).await;
    etcd.stop();
    truncate_database(&stage.data_dir(0));
    let before = stage.read_volume(0);
    assert_eq!(
        stage.run_init(0, &[]).summary(),
        (42, "refuse", "dataCorrupt")
    );
    let empty = ["--store-container=none", "--store-prefix=none"];
    let init_result = stage.run_init(0, &empty);
    assert_eq!(
        init_result.summary(),
        (42, "refuse", "dataCorrupt"),
        "{}",
        init_result.json
    );
    assert_eq!(init_result.report().data.state, DataState::Corrupt);
    assert_eq!(stage.read_volume(0), before);
}
