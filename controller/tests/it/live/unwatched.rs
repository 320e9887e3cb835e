//! Volumes whose claims lost the label they are watched by.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::cluster::ProxiedCluster;
use super::kubelet::{JobResult, FakeKubelet};
use super::recovery::{RestoredServer, job_args, complete_quorum_restore, lose_two_members, create_three_members, wait_recovery_over};
use super::stage::TestEnv;

/// Takes the label off every claim.
async fn unlabel_pvcs(stage: &TestEnv) {
    let claims = stage.api::<PersistentVolumeClaim>();
    let listed = claims.list(&ListParams::default()).await.expect("a list");
    assert_eq!(listed.items.len(), 3);
    let gone = json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": null } } });
    for claim in listed.items {
        let patched = claims
            .patch(
                &claim.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&gone),
            )
            .await;
        patched.expect("take a label off");
    }
}

#[tokio::test]
async fn what_the_others_had_is_put_aside_also_when_nobody_watches_their_claims() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let mut behind = ProxiedCluster::start("main", 3, 3).await;
    behind.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    let port = create_three_members(&stage, &behind, "Automatic").await;
    unlabel_pvcs(&stage).await;
    lose_two_members(&mut behind, &kubelet);
    stage.wait_for("main-restore-2", "there", |_: &Job| true).await;
    drop(behind);
    let restored = RestoredServer::start_on_port("main-2", port).await;
    let words = restored.restore_message().await;
    let base = JobResult::Succeeded(words.clone());
    kubelet.configure(|behavior| {
        behavior.job_results.insert("main-restore-2".to_owned(), base);
    });
    for other in ["main-restore-0", "main-restore-1"] {
        let job = stage.wait_for(other, "there", |_: &Job| true).await;
        let verb = job_args(&job);
        assert!(verb.iter().any(|word| word == "set-aside"), "{verb:?}");
    }
    complete_quorum_restore(&kubelet, words);
    wait_recovery_over(&stage).await;
    controller.stop().await;
}
