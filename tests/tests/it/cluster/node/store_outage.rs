//! Outages of the backup store.

use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_tests::cluster::managed_etcd::{ManagedEtcd, find_condition};
use mainstay_tests::cluster::member::read_key_space;
use mainstay_tests::cluster::timeline::{self, Timeline};
use mainstay_tests::cluster::{ClusterComponent, eventually};

use super::super::harness::{
    TestNamespace, assert_no_write_lost, assert_recovered, with_local_namespace, write_and_back_up,
};
use super::super::interruptions::replace_controllers;

/// The kind of outage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreOutage {
    /// Packets of the member to the store are dropped until the backup is reported as late.
    Unreachable,
    /// The store is stopped until the backup is reported as failed.
    Stopped,
}

/// Waits until the Etcd reports its backup as late, or as failed if the store is stopped.
async fn wait_until_late(etcd: &ManagedEtcd, away: StoreOutage) {
    let is_told = async || {
        let told = find_condition(&etcd.get().await.ok()?, &ConditionType::BackupReady)?;
        let is_told = match away {
            StoreOutage::Unreachable => told.status != ConditionStatus::True,
            StoreOutage::Stopped => told.status == ConditionStatus::False,
        };
        is_told.then_some(())
    };
    eventually("the backup to be reported as late", is_told)
        .await
        .unwrap();
}

/// Makes the store unavailable until that is reported and controllers have been replaced; then restores it.
pub(super) async fn run_store_outage(stage: &TestNamespace, away: StoreOutage) {
    let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
    let members = etcd.wait_for_members(1).await.unwrap();
    etcd.wait_until_settled().await.unwrap();
    write_and_back_up(&etcd, &members).await;
    let load = etcd.start_load().await.unwrap();
    let mut timeline = Timeline::start("the backup store", "the store is unavailable");
    let node = stage.local_node();
    let cut = match away {
        StoreOutage::Unreachable => Some(node.stall_uploads(members[0].address, 0).await.unwrap()),
        StoreOutage::Stopped => {
            node.stop(ClusterComponent::Store).await.unwrap();
            None
        }
    };
    wait_until_late(&etcd, away).await;
    timeline.record_event("the Etcd reports its backup as late");
    replace_controllers(stage).await;
    wait_until_late(&etcd, away).await;
    match cut {
        Some(cut) => cut.heal().await.unwrap(),
        None => node.start(ClusterComponent::Store).await.unwrap(),
    }
    timeline.record_event("the store is back");
    load.wait_for_writes(20).await.unwrap();
    let written = load.stop().await.unwrap();
    let before = read_key_space(&members).await.unwrap();
    assert_no_write_lost(&written, &before);
    etcd.wait_until_backed_up(before.revision).await.unwrap();
    timeline.record_event("every write is in the backup");
    timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
    let is_ready = async || {
        let told = find_condition(&etcd.get().await.ok()?, &ConditionType::BackupReady)?;
        (told.status == ConditionStatus::True).then_some(())
    };
    let what = "condition BackupReady to become true";
    eventually(what, is_ready).await.unwrap();

    etcd.delete_volume(&members[0]).await.unwrap();
    let is_new = |member: &_| !members.contains(member);
    assert_recovered(&etcd, &before, (1, is_new)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_outage_is_reported_and_caught_up() {
    with_local_namespace("outage", async |stage| {
        run_store_outage(stage, StoreOutage::Unreachable).await;
    })
    .await;
}
