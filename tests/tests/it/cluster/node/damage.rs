//! Damaged files on a volume.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use mainstay_tests::cluster::member::read_key_space;
use mainstay_tests::cluster::timeline::{self, Timeline};

use super::super::availability::AbsenceWatch;
use super::super::harness::{
    assert_no_write_lost, assert_resumed, start_backed_up_load, with_local_namespace,
};

const PAGE: u64 = 4096;

/// Overwrites a part of a file, as a faulty disk would.
fn damage(file: &Path, from: u64, length: u64) {
    let mut file = File::options().write(true).open(file).unwrap();
    file.seek(SeekFrom::Start(from)).unwrap();
    let mut noise = std::io::repeat(0xa5).take(length);
    std::io::copy(&mut noise, &mut file).unwrap();
    file.sync_all().unwrap();
}

/// Overwrites a record in the middle of the first WAL segment.
pub(super) fn damage_log(data_dir: &Path) {
    let logs = fs::read_dir(data_dir.join("member/wal")).unwrap();
    let logs = logs.map(|entry| entry.unwrap().path());
    let logs = logs.filter(|path| path.extension().is_some_and(|end| end == "wal"));
    damage(&logs.min().unwrap(), 2 * PAGE, 1000);
}

/// Overwrites all pages of a database except its two meta pages.
pub(super) fn damage_database(data_dir: &Path) {
    let database = data_dir.join("member/snap/db");
    let length = fs::metadata(&database).unwrap().len();
    damage(&database, 2 * PAGE, length - 2 * PAGE);
}

#[tokio::test(flavor = "multi_thread")]
async fn member_with_a_damaged_database_is_replaced_while_others_serve() {
    with_local_namespace("database", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(3)).await;
        let before = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = etcd.start_load().await.unwrap();
        load.wait_for_writes(200).await.unwrap();
        let bad = &before[2];
        let data = stage.member_data_dir(&etcd, bad).await;

        let away = AbsenceWatch::start(stage, &etcd).await;
        let mut timeline = Timeline::start(
            "one database of three",
            "the pages of the database are overwritten",
        );
        damage_database(&data);
        etcd.kill_pod(bad).await.unwrap();
        let is_another = |member: &_| *member != *bad;
        let members = etcd.wait_for_members_where(3, is_another).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        timeline.record_event("three members are ready");
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
        load.wait_for_writes(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
        away.assert_served(1, &written).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn single_member_with_a_damaged_wal_is_restored_from_the_backup() {
    with_local_namespace("log", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
        let members = etcd.wait_for_members(1).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = start_backed_up_load(&etcd).await;
        let data = stage.member_data_dir(&etcd, &members[0]).await;

        let mut timeline = Timeline::start(
            "the only log",
            "a record in the middle of the WAL is overwritten",
        );
        damage_log(&data);
        etcd.kill_pod(&members[0]).await.unwrap();
        let is_new = |member: &_| !members.contains(member);
        assert_resumed(&etcd, load, (1, is_new)).await;
        timeline.record_event("the member is ready with all keys");
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
        let left = fs::read_dir(data.parent().unwrap()).unwrap();
        let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let aside = names.filter(|name| name.starts_with("new.etcd.before-"));
        assert_eq!(aside.count(), 1, "the damaged data directory must be kept");
    })
    .await;
}
