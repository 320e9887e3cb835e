//! More is lost than the members can make good among themselves: what the backup holds comes back.

use steward_tests::cluster::managed::Managed;
use steward_tests::cluster::member::{Content, Member, content};
use steward_tests::cluster::timeline::{self, Timeline};

use super::stage::{assert_kept, on_stage};

/// Writes, and waits until every write is in the backup.
async fn write(etcd: &Managed, members: &[Member]) -> Content {
    let load = etcd.load().await.unwrap();
    load.has_written(200).await.unwrap();
    let written = load.stop().await.unwrap();
    let before = content(members).await.unwrap();
    assert_kept(&written, &before);
    etcd.is_backed_up(before.revision).await.unwrap();
    before
}

/// All members are others, and whole: with the same keys, each with its revisions, and beyond every revision a client
/// may have seen.
async fn assert_recovered(etcd: &Managed, before: &Content, lost: &[Member]) {
    let is_new = |member: &_| !lost.contains(member);
    let members = etcd.members_that(lost.len(), is_new).await.unwrap();
    etcd.settled().await.unwrap();
    let after = content(&members).await.unwrap();
    assert_eq!(after.keys, before.keys);
    assert!(after.revision > before.revision, "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_member_that_lost_its_volume_is_restored_from_the_backup() {
    on_stage("single", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let members = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let before = write(&etcd, &members).await;
        let mut timeline = Timeline::start("the only volume", "pod and volume are gone");
        etcd.lose_volume(&members[0]).await.unwrap();
        assert_recovered(&etcd, &before, &members).await;
        timeline.mark("the member is ready, with all its keys");
        timeline.keep(&timeline::directory().unwrap()).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_that_lost_all_volumes_are_recovered_once_a_person_approves() {
    on_stage("all", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let before = write(&etcd, &members).await;
        let mut timeline = Timeline::start("three volumes of three", "pods and volumes are gone");
        for member in &members {
            etcd.lose_volume(member).await.unwrap();
        }
        etcd.approve_recovery().await.unwrap();
        timeline.mark("the loss is proven, a person approves");
        assert_recovered(&etcd, &before, &members).await;
        timeline.mark("all members are ready, with all their keys");
        timeline.keep(&timeline::directory().unwrap()).unwrap();
    })
    .await;
}
