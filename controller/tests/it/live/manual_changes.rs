//! Manual changes to a StatefulSet.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::cluster::start_settled_three;
use super::test_env::TestEnv;

/// UIDs of all PVCs.
async fn list_pvc_uids(stage: &TestEnv) -> Vec<String> {
    let pvcs = stage.api::<PersistentVolumeClaim>();
    let pvcs = pvcs.list(&ListParams::default()).await.expect("a list");
    pvcs.items.iter().filter_map(ResourceExt::uid).collect()
}

#[tokio::test]
async fn manually_removed_pods_are_recreated_with_their_volumes() {
    let stage = TestEnv::start().await;
    let (_kubelet, proxied, controller) = start_settled_three(&stage).await;
    let before = list_pvc_uids(&stage).await;
    for left in [2, 1] {
        let fewer = json!({ "spec": { "replicas": left } });
        let sets = stage.api::<StatefulSet>();
        let (params, patch) = (PatchParams::default(), Patch::Merge(&fewer));
        let scaled = sets.patch("main", &params, &patch).await.expect("a patch");
        let generation = scaled.metadata.generation;
        let is_back = |set: &StatefulSet| {
            let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
            replicas == Some(3) && set.metadata.generation > generation
        };
        stage.wait_for("main", "scaled back", is_back).await;
        stage.wait_settled("main").await;
        assert_eq!(list_pvc_uids(&stage).await, before, "a PVC was replaced");
        let (voters, learners) = proxied.member_names().await;
        assert_eq!(voters, ["main-0", "main-1", "main-2"]);
        assert!(learners.is_empty(), "{learners:?}");
        assert_eq!(
            stage.count_objects::<Job>().await,
            0,
            "no restore was started"
        );
    }
    controller.stop().await;
}
