//! An external cluster moves into an Etcd without downtime: new members join, and the old ones leave.

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::DeleteParams;
use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::managed_etcd::find_condition;
use mainstay_tests::cluster::member::{MemberPod, read_key_space};
use serde_json::{Value, json};

use super::harness::{TestNamespace, assert_no_write_lost, with_namespace, write_and_back_up};
use super::plain_etcd::{self, NAME, start_load};

/// The cluster to join: one plain member.
fn source_cluster(stage: &TestNamespace) -> Value {
    let host = format!("{NAME}-0.{NAME}.{}.svc", stage.namespace);
    json!({
        "members": [{"name": format!("{NAME}-0"), "peerUrls": [format!("http://{host}:2380")]}],
        "clientEndpoints": [format!("http://{host}:2379")],
    })
}

/// Removes the last old voter, as its operators would.
async fn remove_last_voter(stage: &TestNamespace, old: &MemberPod, joined: &[MemberPod]) {
    let id = eventually("the ID of the last old voter", async || {
        old.member_id().await
    });
    let id = id.await.unwrap();
    let left = async || {
        let mut client = joined[0].client().await.ok()?;
        let list = client.member_list().await.ok()?;
        if list.members().iter().any(|member| member.id() == id.0) {
            client.member_remove(id.0).await.ok()?;
        }
        Some(())
    };
    eventually("the last old voter to leave", left)
        .await
        .unwrap();
    let sets = stage.api::<StatefulSet>();
    sets.delete(NAME, &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn members_join_an_existing_cluster_and_keep_its_data_without_it() {
    with_namespace("join", async |stage| {
        let old = plain_etcd::start_plain_etcd(stage, 1).await;
        let theirs = start_load(&old);
        theirs.wait_for_writes(100).await.unwrap();

        let mut spec = stage.etcd_spec(3);
        spec["etcd"]["bootstrapWithExistingCluster"] = source_cluster(stage);
        let etcd = stage.create_etcd(&spec).await;
        let joined = etcd.wait_for_members(3).await.unwrap();
        let settled = etcd.wait_until_settled().await.unwrap();
        let reported = find_condition(&settled, &ConditionType::BootstrappedWithExistingCluster);
        assert_eq!(reported.unwrap().status, ConditionStatus::True);
        let record = settled.status.unwrap().bootstrap_with_existing_cluster;
        assert_eq!(record.unwrap().members[0].name, format!("{NAME}-0"));

        let written = theirs.stop().await.unwrap();
        let everybody = [old.as_slice(), joined.as_slice()].concat();
        assert_no_write_lost(&written, &read_key_space(&everybody).await.unwrap());

        remove_last_voter(stage, &old[0], &joined).await;
        let alone = async || {
            let mut client = joined[0].client().await.ok()?;
            let list = client.member_list().await.ok()?;
            let is_provisioned_here =
                |member: &etcd_client::Member| member.name().starts_with("main-");
            (list.members().len() == 3 && list.members().iter().all(is_provisioned_here))
                .then_some(())
        };
        eventually("exactly the three members of the Etcd", alone)
            .await
            .unwrap();
        write_and_back_up(&etcd, &joined).await;
        assert_no_write_lost(&written, &read_key_space(&joined).await.unwrap());
    })
    .await;
}
