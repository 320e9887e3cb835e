//! A cluster that runs elsewhere moves into an Etcd without a moment of rest: its members join, and the old ones leave.

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::DeleteParams;
use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_tests::cluster::eventually;
use mainstay_tests::cluster::managed::condition;
use mainstay_tests::cluster::member::{Member, content};
use serde_json::{Value, json};

use super::members::{self, NAME, load};
use super::stage::{Stage, assert_kept, on_stage, write_and_back_up};

/// The cluster to join: one plain member.
fn source(stage: &Stage) -> Value {
    let host = format!("{NAME}-0.{NAME}.{}.svc", stage.namespace);
    json!({
        "members": [{"name": format!("{NAME}-0"), "peerUrls": [format!("http://{host}:2380")]}],
        "clientEndpoints": [format!("http://{host}:2379")],
    })
}

/// The last voter of before leaves, as its people would make it.
async fn leave(stage: &Stage, old: &Member, joined: &[Member]) {
    let id = eventually("who the last voter is", async || old.id().await);
    let id = id.await.unwrap();
    let left = async || {
        let mut client = joined[0].client().await.ok()?;
        let list = client.member_list().await.ok()?;
        if list.members().iter().any(|member| member.id() == id.0) {
            client.member_remove(id.0).await.ok()?;
        }
        Some(())
    };
    eventually("the last voter leaves", left).await.unwrap();
    let sets = stage.api::<StatefulSet>();
    sets.delete(NAME, &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn members_join_a_cluster_that_runs_and_keep_its_data_when_it_is_gone() {
    on_stage("join", async |stage| {
        let old = members::start(stage, 1).await;
        let theirs = load(&old);
        theirs.has_written(100).await.unwrap();

        let mut spec = stage.spec(3);
        spec["etcd"]["bootstrapWithExistingCluster"] = source(stage);
        let etcd = stage.etcd(&spec).await;
        let joined = etcd.members(3).await.unwrap();
        let settled = etcd.settled().await.unwrap();
        let told = condition(&settled, &ConditionType::BootstrappedWithExistingCluster);
        assert_eq!(told.unwrap().status, ConditionStatus::True);
        let record = settled.status.unwrap().bootstrap_with_existing_cluster;
        assert_eq!(record.unwrap().members[0].name, format!("{NAME}-0"));

        let written = theirs.stop().await.unwrap();
        let everybody = [old.as_slice(), joined.as_slice()].concat();
        assert_kept(&written, &content(&everybody).await.unwrap());

        leave(stage, &old[0], &joined).await;
        let alone = async || {
            let mut client = joined[0].client().await.ok()?;
            let list = client.member_list().await.ok()?;
            let is_ours = |member: &etcd_client::Member| member.name().starts_with("main-");
            (list.members().len() == 3 && list.members().iter().all(is_ours)).then_some(())
        };
        eventually("three members, all of them ours", alone)
            .await
            .unwrap();
        write_and_back_up(&etcd, &joined).await;
        assert_kept(&written, &content(&joined).await.unwrap());
    })
    .await;
}
