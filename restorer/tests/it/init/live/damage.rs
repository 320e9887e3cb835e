//! What is verified, and what damage leads to: the exact verdict, and a volume that is as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mainstay_datadir::CleanStop;
use mainstay_testkit::each_version;
use mainstay_verdict::{DataState, Thoroughness};
use serde_json::json;

use super::super::stage::{Said, Stage};
use super::{BUCKET, NEW, keys, one_running};

/// The first write-ahead log of a member.
fn log(data_dir: &Path) -> PathBuf {
    data_dir.join("member/wal/0000000000000000-0000000000000000.wal")
}

fn database(data_dir: &Path) -> PathBuf {
    data_dir.join("member/snap/db")
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

/// Bytes of the log that were written; zeros are prepared behind them.
fn written(bytes: &[u8]) -> usize {
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    (last + 1).next_multiple_of(8)
}

/// Every page that holds the key, the one in use among them, says that it is another page.
fn break_pages_with_keys(data_dir: &Path) {
    change(&database(data_dir), |bytes| {
        let size = u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize;
        let mut broken = 0;
        for page in bytes.chunks_mut(size) {
            if page.windows(5).any(|window| window == b"key-0") {
                page[..8].fill(0xee);
                broken += 1;
            }
        }
        assert!(broken > 0, "no page holds the key");
    });
}

fn cut_the_database(data_dir: &Path) {
    change(&database(data_dir), |bytes| bytes.truncate(bytes.len() / 2));
}

/// A bit of a record in the middle of the log, which its checksum notices.
fn flip_a_bit_of_the_log(data_dir: &Path) {
    change(&log(data_dir), |bytes| {
        let mut windows = bytes.windows(5);
        let key = windows.position(|window| window == b"key-2").unwrap();
        bytes[key] ^= 1;
    });
}

/// Far more than a crash tears off: entries the database has are not in the log any more.
fn tear_the_log(data_dir: &Path) {
    change(&log(data_dir), |bytes| {
        let end = written(bytes);
        bytes[end / 2..].fill(0);
    });
}

fn lose_the_log(data_dir: &Path) {
    fs::remove_dir_all(data_dir.join("member/wal")).unwrap();
}

fn lose_the_database(data_dir: &Path) {
    fs::remove_file(database(data_dir)).unwrap();
}

type Damage = (fn(&Path), &'static str);

/// Each kind of damage with the file its verdict names.
const DAMAGES: [Damage; 6] = [
    (break_pages_with_keys, "member/snap/db, page "),
    (cut_the_database, "member/snap/db"),
    (
        flip_a_bit_of_the_log,
        "member/wal/0000000000000000-0000000000000000.wal, byte ",
    ),
    (tear_the_log, "member/"),
    (lose_the_log, "member/wal"),
    (lose_the_database, "member/snap/db"),
];

/// Puts the volume of the first member back to what it was.
fn put_back(stage: &Stage, copy: &Path) {
    let volume = stage.volume(0);
    fs::remove_dir_all(&volume).unwrap();
    let copied = Command::new("cp").arg("-a").arg(copy).arg(&volume).status();
    assert!(copied.unwrap().success());
}

/// The whole message, but for the words about the damage and what could still be read of the data.
fn expect_exactly(said: &Said, place: &str) {
    let reason = said.json["reason"].as_str().unwrap().to_owned();
    assert!(
        reason.starts_with("the data of etcd-0 is damaged: ") && reason.contains(place),
        "{reason}"
    );
    let data = said.json["init"]["data"].clone();
    assert_eq!(data["state"], "corrupt", "{data}");
    let expected = json!({
        "verdict": "restore-required",
        "reason": reason,
        "nextStep": "`mainstay-restorer restore` with this volume; the controller does it where it may",
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
    assert_eq!(said.json, expected);
}

each_version! {
    async fn damage_of_the_only_copy_is_told_and_nothing_is_touched(version) {
        let stage = Stage::with_fixture(version, 1, "gzip-3.5.30");
        let (etcd, _) = one_running(&stage).await;
        etcd.stop();
        fs::remove_file(stage.output(0)).unwrap();
        let copy = stage.home.path("copy");
        fs::rename(stage.volume(0), &copy).unwrap();
        for (damage, place) in DAMAGES {
            put_back(&stage, &copy);
            damage(&stage.data_dir(0));
            let before = stage.content(0);
            let said = stage.init(0, &BUCKET);
            assert_eq!(said.code, 40, "{}", said.json);
            expect_exactly(&said, place);
            assert_eq!(stage.content(0), before, "{place} was touched");
            assert_eq!(stage.written(0), None, "etcd would start");
        }
    }

    async fn what_a_killed_etcd_leaves_is_verified_in_full_and_served(version) {
        let stage = Stage::of(version, 1);
        let (etcd, _) = one_running(&stage).await;
        drop(etcd); // kill -9
        // A write that the crash tore: a record is announced, and a sector of it never came.
        change(&log(&stage.data_dir(0)), |bytes| {
            let end = written(bytes);
            bytes[end..end + 8].copy_from_slice(&4096u64.to_le_bytes());
            bytes[end + 8..end + 64].fill(0x55);
        });
        let before = stage.content(0);
        let said = stage.init(0, &[]);
        assert_eq!(said.brief(), (0, "start", ""), "{}", said.json);
        assert_eq!(said.report().data.verified, Some(Thoroughness::Full));
        assert_eq!(stage.content(0), before, "etcd repairs its log, init does not");
        let _etcd = stage.launch(0);
        assert_eq!(keys(&mut stage.client(0).await).await, 5);
    }

    async fn after_an_orderly_stop_the_data_is_verified_quickly_and_once_only(version) {
        let stage = Stage::of(version, 1);
        let (etcd, _) = one_running(&stage).await;
        etcd.stop();
        let note = CleanStop::observe(&stage.data_dir(0), "a test").unwrap();
        note.write(&stage.data_dir(0)).unwrap();
        let quick = stage.init(0, &[]).report();
        assert_eq!(quick.data.verified, Some(Thoroughness::Quick));
        assert!(quick.data.revision >= Some(6), "{quick:?}");
        let again = stage.init(0, &[]).report();
        assert_eq!(again.data.verified, Some(Thoroughness::Full));
        assert_eq!((again.data.revision, again.data.member_id), (quick.data.revision, quick.data.member_id));
        let _etcd = stage.launch(0);
        assert_eq!(keys(&mut stage.client(0).await).await, 5);
    }
}

#[tokio::test]
async fn a_note_about_other_data_is_no_reason_to_look_quickly() {
    let stage = Stage::with_fixture(NEW, 1, "gzip-3.5.30");
    let (etcd, _) = one_running(&stage).await;
    etcd.stop();
    let note = CleanStop::observe(&stage.data_dir(0), "a test").unwrap();
    let etcd = stage.start(0);
    let mut client = stage.client(0).await;
    client.put("later", "value", None).await.unwrap();
    etcd.stop();
    note.write(&stage.data_dir(0)).unwrap();
    let said = stage.init(0, &[]);
    assert_eq!(said.brief(), (0, "start", ""), "{}", said.json);
    assert_eq!(said.report().data.verified, Some(Thoroughness::Full));
    // Nor is one that nobody can read: as a folder it cannot even be taken away.
    let file = stage.volume(0).join("new.etcd.clean-stop");
    for make in [
        |file: &Path| fs::write(file, "{".repeat(1 << 20)).unwrap(),
        |file: &Path| fs::create_dir(file).unwrap(),
    ] {
        make(&file);
        let said = stage.init(0, &[]);
        assert_eq!(said.brief(), (0, "start", ""), "{}", said.json);
        assert_eq!(said.report().data.verified, Some(Thoroughness::Full));
    }
}

#[tokio::test]
async fn damaged_data_that_no_backup_can_replace_is_refused() {
    let stage = Stage::of(NEW, 1);
    let (etcd, _) = one_running(&stage).await;
    etcd.stop();
    cut_the_database(&stage.data_dir(0));
    let before = stage.content(0);
    assert_eq!(stage.init(0, &[]).brief(), (42, "refuse", "dataCorrupt"));
    let empty = ["--store-container=none", "--store-prefix=none"];
    let said = stage.init(0, &empty);
    assert_eq!(said.brief(), (42, "refuse", "dataCorrupt"), "{}", said.json);
    assert_eq!(said.report().data.state, DataState::Corrupt);
    assert_eq!(stage.content(0), before);
}
