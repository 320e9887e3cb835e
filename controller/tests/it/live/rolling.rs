//! Rolling updates, scale-in and replacement of members with a real quorum of etcd servers.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mainstay_crds::Etcd;
use mainstay_crds::etcd::{EtcdMemberStatus, MemberRole};
use mainstay_testkit::EtcdOptions;
use serde_json::json;

use super::cluster::{ProxiedCluster, start_settled_three};
use super::fake_kubelet::FakeKubelet;
use super::test_env::TestEnv;

async fn list_pod_uids(stage: &TestEnv, size: usize) -> BTreeMap<usize, String> {
    let mut uids = BTreeMap::new();
    for ordinal in 0..size {
        if let Some(pod) = stage
            .api::<Pod>()
            .get_opt(&format!("main-{ordinal}"))
            .await
            .unwrap()
        {
            uids.insert(ordinal, pod.uid().unwrap());
        }
    }
    uids
}

fn has_versions(etcd: &Etcd) -> bool {
    let status = etcd.status.as_ref();
    let members = status.and_then(|status| status.members.as_ref());
    let is_published =
        |one: &EtcdMemberStatus| one.version.is_some() && one.db_size_bytes.is_some();
    members.is_some_and(|all| all.len() == 3 && all.iter().all(is_published))
}

#[tokio::test]
async fn members_are_reported_and_replaced_one_at_a_time_leader_last() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    // With a long election timeout only a transfer changes the leader.
    let options = EtcdOptions::new().long_election_timeout();
    let mut proxied = ProxiedCluster::start_with_options(&options, "main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", proxied.spec(3)).await;
    stage
        .wait_for("main", "published with versions and sizes", has_versions)
        .await;
    let etcd = stage.wait_settled("main").await;
    let members = etcd.status.unwrap().members.unwrap();
    let is_leader = |one: &&EtcdMemberStatus| one.role == Some(MemberRole::Leader);
    assert_eq!(members.iter().filter(is_leader).count(), 1);

    let mut led = proxied.cluster.leader().await;
    let mut known = list_pod_uids(&stage, 3).await;
    // A new pod becomes ready only after its server was restarted.
    let started = known.values().cloned().collect();
    kubelet.configure(|behavior| behavior.started_pods = Some(started));
    stage
        .patch_etcd(
            "main",
            json!({ "spec": { "annotations": { "rolled": "once" } } }),
        )
        .await;
    let mut order = Vec::new();
    let deadline = tokio::time::Instant::now() + Duration::from_mins(2);
    while order.len() < 3 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "only {order:?} were replaced"
        );
        let now = list_pod_uids(&stage, 3).await;
        let changed: Vec<usize> = (0..3).filter(|n| now.get(n) != known.get(n)).collect();
        assert!(changed.len() <= 1, "{changed:?} were replaced at once");
        if let Some(ordinal) = changed.first().copied().filter(|n| now.contains_key(n)) {
            let leads = proxied.cluster.find_leader().await;
            assert_ne!(
                leads,
                Some(ordinal),
                "it was replaced while it was the leader"
            );
            if order.len() < 2 {
                assert_ne!(ordinal, led, "after {order:?}: the leader is replaced last");
            }
            // The new container is a new etcd process.
            proxied.cluster.members[ordinal].kill();
            proxied.cluster.members[ordinal].restart().await;
            known.insert(ordinal, now[&ordinal].clone());
            order.push(ordinal);
            led = proxied.cluster.leader().await;
            kubelet.configure(|behavior| {
                let started = behavior.started_pods.get_or_insert_default();
                started.insert(now[&ordinal].clone());
            });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stage.wait_settled("main").await;
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn members_are_removed_before_their_pods_are_deleted() {
    let stage = TestEnv::start().await;
    let (kubelet, proxied, controller) = start_settled_three(&stage).await;
    let led = proxied.cluster.leader().await;
    proxied.cluster.members[led]
        .move_leader_to(&proxied.cluster.members[2])
        .await;

    stage
        .patch_etcd("main", json!({ "spec": proxied.spec(1) }))
        .await;
    let mut smallest = 3;
    let deadline = tokio::time::Instant::now() + Duration::from_mins(2);
    while smallest > 1 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{smallest} pods are left"
        );
        let set = stage.api::<StatefulSet>().get("main").await.unwrap();
        let replicas = set.spec.unwrap().replicas.unwrap();
        let (voters, _) = proxied.member_names().await;
        assert!(
            voters.len() <= usize::try_from(replicas).unwrap(),
            "{replicas} pods for {voters:?}"
        );
        smallest = replicas.min(smallest);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(proxied.member_names().await.0, ["main-0"]);
    stage.wait_settled("main").await;
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn member_without_data_is_removed_and_added_again_as_a_learner() {
    let stage = TestEnv::start().await;
    let (kubelet, mut proxied, controller) = start_settled_three(&stage).await;

    let lost = (proxied.cluster.leader().await + 1) % 3;
    proxied.cluster.members[lost].kill();
    let verdict = json!({ "verdict": "wait", "init": {
        "version": 1, "member": format!("main-{lost}"), "decision": "wait", "cause": "dataLost",
        "data": { "state": "missing" }, "cluster": { "state": "unreachable" }, "backup": { "state": "unconfigured" },
    } });
    kubelet.configure(|behavior| {
        behavior
            .init_verdicts
            .insert(format!("main-{lost}"), verdict);
    });
    stage
        .wait_until("the member is a learner that has not started", async || {
            let (voters, learners) = proxied.member_names().await;
            voters.len() == 2 && learners == [""]
        })
        .await;
    assert!(
        !proxied
            .member_names()
            .await
            .0
            .contains(&format!("main-{lost}"))
    );
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn cluster_scales_out_by_a_pod_that_is_added_as_a_learner() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let proxied = ProxiedCluster::start("main", 1, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", proxied.spec(1)).await;
    stage.wait_settled("main").await;
    kubelet.configure(|behavior| {
        behavior
            .ignored_pods
            .extend(["main-1".to_owned(), "main-2".to_owned()]);
    });

    stage
        .patch_etcd("main", json!({ "spec": proxied.spec(3) }))
        .await;
    stage
        .wait_until("a learner was added", async || {
            proxied.member_names().await == (vec!["main-0".to_owned()], vec![String::new()])
        })
        .await;
    stage.wait_until_idle(&controller).await;
    stage.wait_for_replicas("main", 2).await;
    let waits = |etcd: &Etcd| {
        let last = etcd
            .status
            .as_ref()
            .and_then(|status| status.last_operation.as_ref());
        last.is_some_and(|last| last.description == "Waiting for learner main-1 to catch up")
    };
    stage
        .wait_for("main", "waiting for the learner", waits)
        .await;
    drop(kubelet);
    controller.stop().await;
}
