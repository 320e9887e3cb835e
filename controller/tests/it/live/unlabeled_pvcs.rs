//! Volumes whose PVCs lost the label that selects them for the watch.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::cluster::ProxiedCluster;
use super::fake_kubelet::{FakeKubelet, JobResult};
use super::recovery::{
    RestoredServer, complete_quorum_restore, create_three_members, job_args, lose_two_members,
    wait_recovery_over,
};
use super::test_env::TestEnv;

/// Removes the label from every PVC.
async fn unlabel_pvcs(stage: &TestEnv) {
    let pvcs = stage.api::<PersistentVolumeClaim>();
    let listed = pvcs.list(&ListParams::default()).await.expect("a list");
    assert_eq!(listed.items.len(), 3);
    let gone = json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": null } } });
    for pvc in listed.items {
        let patched = pvcs
            .patch(
                &pvc.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&gone),
            )
            .await;
        patched.expect("remove a label");
    }
}

#[tokio::test]
async fn data_of_unlabeled_pvcs_becomes_the_previous_data_directory() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let mut proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    let port = create_three_members(&stage, &proxied, "Automatic").await;
    unlabel_pvcs(&stage).await;
    lose_two_members(&mut proxied, &kubelet);
    stage
        .wait_for("main-restore-2", "there", |_: &Job| true)
        .await;
    drop(proxied);
    let restored = RestoredServer::start_on_port("main-2", port).await;
    let output = restored.restore_message().await;
    let base = JobResult::Succeeded(output.clone());
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-restore-2".to_owned(), base);
    });
    for other in ["main-restore-0", "main-restore-1"] {
        let job = stage.wait_for(other, "there", |_: &Job| true).await;
        let flags = job_args(&job);
        assert!(flags.iter().any(|arg| arg == "set-aside"), "{flags:?}");
    }
    complete_quorum_restore(&kubelet, output);
    wait_recovery_over(&stage).await;
    controller.stop().await;
}
