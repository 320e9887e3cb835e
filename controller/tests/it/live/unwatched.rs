//! Volumes whose claims lost the label they are watched by.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::cluster::Behind;
use super::kubelet::{Ends, Kubelet};
use super::recovery::{Restored, args, come_back, lose_two, of_three, over};
use super::stage::Stage;

/// Takes the label off every claim.
async fn unlabel_claims(stage: &Stage) {
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
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let mut behind = Behind::start("main", 3, 3).await;
    behind.settle_in(&kubelet).await;
    let controller = stage.control().await;
    let port = of_three(&stage, &behind, "Automatic").await;
    unlabel_claims(&stage).await;
    lose_two(&mut behind, &kubelet);
    stage.until("main-restore-2", "there", |_: &Job| true).await;
    drop(behind);
    let restored = Restored::behind("main-2", port).await;
    let words = restored.words().await;
    let base = Ends::Well(words.clone());
    kubelet.order(|orders| {
        orders.jobs.insert("main-restore-2".to_owned(), base);
    });
    for other in ["main-restore-0", "main-restore-1"] {
        let job = stage.until(other, "there", |_: &Job| true).await;
        let verb = args(&job);
        assert!(verb.iter().any(|word| word == "set-aside"), "{verb:?}");
    }
    come_back(&kubelet, words);
    over(&stage).await;
    controller.stop().await;
}
