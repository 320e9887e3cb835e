//! The backup store is away.

use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_tests::cluster::managed::{Managed, condition};
use mainstay_tests::cluster::member::content;
use mainstay_tests::cluster::timeline::{self, Timeline};
use mainstay_tests::cluster::{Component, eventually};

use super::super::midway::replace_controllers;
use super::super::stage::{Stage, assert_kept, assert_recovered, on_own_stage, write_and_back_up};

/// How a store is away.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Away {
    /// No packet of the member reaches it, until the backup is reported to be late.
    Unreachable,
    /// It is stopped, until the backup is reported to have failed.
    Stopped,
}

/// Waits until the Etcd reports that its backup is late, or even that it has failed.
async fn is_late(etcd: &Managed, away: Away) {
    let is_told = async || {
        let told = condition(&etcd.get().await.ok()?, &ConditionType::BackupReady)?;
        let is_told = match away {
            Away::Unreachable => told.status != ConditionStatus::True,
            Away::Stopped => told.status == ConditionStatus::False,
        };
        is_told.then_some(())
    };
    eventually("a backup that is reported to be late", is_told)
        .await
        .unwrap();
}

/// Takes the store away until that is reported and controllers have been replaced; then it comes back.
pub(super) async fn outage(stage: &Stage, away: Away) {
    let etcd = stage.etcd(&stage.spec(1)).await;
    let members = etcd.members(1).await.unwrap();
    etcd.settled().await.unwrap();
    write_and_back_up(&etcd, &members).await;
    let load = etcd.load().await.unwrap();
    let mut timeline = Timeline::start("the backup store", "it is away");
    let node = stage.node();
    let cut = match away {
        Away::Unreachable => Some(node.stall_uploads(members[0].address, 0).await.unwrap()),
        Away::Stopped => {
            node.stop(Component::Store).await.unwrap();
            None
        }
    };
    is_late(&etcd, away).await;
    timeline.mark("the Etcd says that its backup is late");
    replace_controllers(stage).await;
    is_late(&etcd, away).await;
    match cut {
        Some(cut) => cut.heal().await.unwrap(),
        None => node.start(Component::Store).await.unwrap(),
    }
    timeline.mark("the store is back");
    load.has_written(20).await.unwrap();
    let written = load.stop().await.unwrap();
    let before = content(&members).await.unwrap();
    assert_kept(&written, &before);
    etcd.is_backed_up(before.revision).await.unwrap();
    timeline.mark("every write is in the backup");
    timeline.keep(&timeline::directory().unwrap()).unwrap();
    let is_ready = async || {
        let told = condition(&etcd.get().await.ok()?, &ConditionType::BackupReady)?;
        (told.status == ConditionStatus::True).then_some(())
    };
    let what = "a backup that is reported to be as recent as scheduled";
    eventually(what, is_ready).await.unwrap();

    etcd.lose_volume(&members[0]).await.unwrap();
    let is_new = |member: &_| !members.contains(member);
    assert_recovered(&etcd, &before, (1, is_new)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_told_and_caught_up_with() {
    on_own_stage("outage", async |stage| {
        outage(stage, Away::Unreachable).await;
    })
    .await;
}
