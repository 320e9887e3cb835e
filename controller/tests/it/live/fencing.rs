//! A volume that remembers a greater epoch than a document has that was made anew.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::kubelet::{Ends, Kubelet};
use super::recovery::{Restored, args, come_back_alone, lose_the_only, of_one, over};
use super::stage::Stage;

const JOB: &str = "main-restore-0";
const DOCUMENT: &str = "main-coordination";

/// The epoch a Job was launched under.
fn sent_under(job: &Job) -> u64 {
    let flags = args(job);
    let token = flags.iter().find_map(|flag| flag.strip_prefix("--fence="));
    let epoch = token.and_then(|token| token.split('/').next());
    epoch.expect("a token").parse().expect("an epoch")
}

/// The epoch of the lock.
fn epoch(document: &ConfigMap) -> Option<u64> {
    let lock = document.data.as_ref()?.get("lock")?;
    serde_json::from_str::<Value>(lock).ok()?["epoch"].as_u64()
}

/// The Job of another recovery, after the document of the first is lost.
async fn begin_anew(stage: &Stage) -> Job {
    let first = stage.until(JOB, "there", |_: &Job| true).await;
    let documents = stage.api::<ConfigMap>();
    documents
        .delete(DOCUMENT, &DeleteParams::default())
        .await
        .expect("delete the document");
    let is_another = |job: &Job| job.uid() != first.uid();
    let second = stage.until(JOB, "another", is_another).await;
    assert!(sent_under(&second) > sent_under(&first), "epochs grow");
    second
}

#[tokio::test]
async fn a_volume_that_remembers_a_greater_epoch_is_outranked_and_the_recovery_completes() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let restored = Restored::start("main-0").await;
    lose_the_only(&kubelet);
    let controller = stage.control().await;
    stage.create("main", of_one(&restored)).await;
    let refused = begin_anew(&stage).await;
    let remembered = sent_under(&refused) + 1_000_000;
    let words = json!({ "verdict": "in-use", "reason": "overtaken", "overtakenBy": remembered });
    kubelet.order(|orders| {
        orders.jobs.insert(JOB.to_owned(), Ends::Badly(words));
    });
    stage
        .until(DOCUMENT, "above what the volume remembers", |map| {
            epoch(map) == Some(remembered + 1)
        })
        .await;
    kubelet.order(|orders| {
        orders.jobs.insert(JOB.to_owned(), Ends::Later);
    });
    let is_another = |job: &Job| job.uid() != refused.uid();
    let next = stage.until(JOB, "tried again", is_another).await;
    assert_eq!(sent_under(&next), remembered + 1);
    come_back_alone(&kubelet, restored.words().await);
    over(&stage).await;
    stage.settled("main").await;
    stage.at_rest(&controller).await;
    let document = stage.api::<ConfigMap>().get(DOCUMENT).await.unwrap();
    assert_eq!(epoch(&document), Some(remembered + 1), "once was enough");
    controller.stop().await;
}
