//! Recoveries that cannot go on by themselves: people are told why, and what they do then is heeded.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use mainstay_crds::Etcd;
use mainstay_crds::ops::TaskState;
use serde_json::{Value, json};

use super::cluster::Behind;
use super::kubelet::{Ends, Kubelet};
use super::protection::{ended, ops};
use super::recovery::{
    Restored, args, come_back_alone, condition, lose_the_only, lose_two, of_one, of_three, over,
    verdict,
};
use super::stage::Stage;

/// Waits until the recovery has this reason; in which words.
async fn told(stage: &Stage, reason: &str) -> String {
    let is_told = |etcd: &Etcd| condition(etcd).is_some_and(|one| one.reason == reason);
    let etcd = stage.until("main", reason, is_told).await;
    condition(&etcd).expect("just seen").message
}

/// Which attempt a recovery is at.
async fn attempt(stage: &Stage) -> u64 {
    let documents = stage.api::<k8s_openapi::api::core::v1::ConfigMap>();
    let document = documents.get_opt("main-coordination").await.expect("ask");
    let entries = document.and_then(|map| map.data).unwrap_or_default();
    let incident = entries
        .get("incident")
        .map(|text| serde_json::from_str(text));
    let incident: Value = incident.transpose().expect("JSON").unwrap_or_default();
    incident["attempt"].as_u64().unwrap_or_default()
}

#[tokio::test]
async fn a_task_takes_the_place_of_a_recovery_whose_job_is_killed_again_and_again() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let restored = Restored::start("main-0").await;
    lose_the_only(&kubelet);
    let line =
        r#"{"level":"INFO","message":"working","job":"restore","bytes":86,"total_bytes":200}"#;
    let killed = Ends::Killed(line.to_owned());
    let job = "main-restore-0".to_owned();
    kubelet.order(|orders| {
        orders.jobs.insert(job.clone(), killed);
    });
    let controller = stage.control().await;
    stage.create("main", of_one(&restored)).await;
    let words = told(&stage, "RestoreFailed").await;
    let why = "killed, its memory limit was not enough (OOMKilled); it was at 43 %, 86 B of 200 B";
    assert!(words.contains(why), "{words}");
    stage
        .eventually("it is tried again", async || attempt(&stage).await > 1)
        .await;

    kubelet.order(|orders| {
        orders.jobs.insert(job, Ends::Later);
    });
    ops(
        &stage,
        "back",
        json!({ "restore": { "toRevision": 7 } }),
        3600,
    )
    .await;
    let wanted = "--to-revision=7".to_owned();
    let is_its = |job: &Job| args(job).contains(&wanted);
    stage.until("main-restore-0", "of the task", is_its).await;
    come_back_alone(&kubelet, restored.words().await);
    ended(&stage, "back", TaskState::Succeeded).await;
    over(&stage).await;
    controller.stop().await;
}

/// Keeps the claim of a member from going, and deletes it.
async fn begin_to_delete(stage: &Stage, member: &str) -> String {
    let claims = stage.api::<PersistentVolumeClaim>();
    let all = claims.list(&ListParams::default()).await.expect("a list");
    let mut names = all.items.iter().map(ResourceExt::name_any);
    let name = names.find(|name| name.ends_with(member)).expect("a claim");
    keep(stage, &name, &["example.org/kept"]).await;
    let deleted = claims.delete(&name, &DeleteParams::default()).await;
    deleted.expect("delete a claim");
    name
}

async fn keep(stage: &Stage, claim: &str, by: &[&str]) {
    let claims = stage.api::<PersistentVolumeClaim>();
    let finalizers = json!({ "metadata": { "finalizers": by } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&finalizers));
    claims.patch(claim, &params, &patch).await.expect("a patch");
}

#[tokio::test]
async fn the_last_survivor_is_not_stopped_while_its_volume_would_go_with_it() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let mut behind = Behind::start("main", 3, 3).await;
    behind.settle_in(&kubelet).await;
    let controller = stage.control().await;
    of_three(&stage, &behind, "Automatic").await;
    let claim = begin_to_delete(&stage, "main-2").await;
    lose_two(&mut behind, &kubelet);
    let words = told(&stage, "SurvivorAtRisk").await;
    assert!(words.contains("main-2 has the newest copy"), "{words}");
    stage.at_rest(&controller).await;
    stage.set_of("main", 3).await;
    assert_eq!(stage.count::<Job>().await, 0, "nothing is written");

    // A person has saved what it held, and lets it go.
    behind.cluster.members[2].kill();
    kubelet.order(|orders| {
        let lost = verdict("main-2", "wait", "dataLost");
        orders.verdicts.insert("main-2".to_owned(), lost);
    });
    keep(&stage, &claim, &[]).await;
    let pods = stage.api::<Pod>();
    let deleted = pods.delete("main-2", &DeleteParams::default()).await;
    deleted.expect("delete a pod");
    let job = stage.until("main-restore-0", "there", |_: &Job| true).await;
    let flags = args(&job);
    assert!(flags.iter().any(|flag| flag == "restore"), "{flags:?}");
    let prefers = |flag: &String| flag.starts_with("--prefer-data-dir");
    assert!(!flags.iter().any(prefers), "{flags:?}");
    controller.stop().await;
}
