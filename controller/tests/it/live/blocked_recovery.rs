//! Recoveries that cannot continue by themselves: the status reports the reason, and the user's action takes effect.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use mainstay_crds::Etcd;
use mainstay_crds::ops::TaskState;
use serde_json::{Value, json};

use super::backup_jobs::{create_ops_task, wait_for_task};
use super::cluster::ProxiedCluster;
use super::fake_kubelet::{FakeKubelet, JobResult};
use super::recovery::{
    RestoredServer, complete_single_restore, create_three_members, init_verdict, job_args,
    lose_single_member, lose_two_members, recovery_condition, single_member_spec,
    wait_recovery_over,
};
use super::test_env::TestEnv;

/// Waits until `RecoveryRequired` has this reason; returns its message.
async fn wait_for_reason(stage: &TestEnv, reason: &str) -> String {
    let is_reported =
        |etcd: &Etcd| recovery_condition(etcd).is_some_and(|one| one.reason == reason);
    let etcd = stage.wait_for("main", reason, is_reported).await;
    recovery_condition(&etcd)
        .expect("found by the wait")
        .message
}

/// Number of the current attempt of the recovery.
async fn read_attempt(stage: &TestEnv) -> u64 {
    let documents = stage.api::<k8s_openapi::api::core::v1::ConfigMap>();
    let document = documents
        .get_opt("main-coordination")
        .await
        .expect("get the document");
    let entries = document.and_then(|map| map.data).unwrap_or_default();
    let incident = entries
        .get("incident")
        .map(|text| serde_json::from_str(text));
    let incident: Value = incident.transpose().expect("JSON").unwrap_or_default();
    incident["attempt"].as_u64().unwrap_or_default()
}

#[tokio::test]
async fn task_replaces_a_recovery_whose_job_is_repeatedly_killed() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let restored = RestoredServer::start("main-0").await;
    lose_single_member(&kubelet);
    let line =
        r#"{"level":"INFO","message":"working","job":"restore","bytes":86,"total_bytes":200}"#;
    let killed = JobResult::OomKilled(line.to_owned());
    let job = "main-restore-0".to_owned();
    kubelet.configure(|behavior| {
        behavior.job_results.insert(job.clone(), killed);
    });
    let controller = stage.start_controller().await;
    stage
        .create_etcd("main", single_member_spec(&restored))
        .await;
    let message = wait_for_reason(&stage, "RestoreFailed").await;
    let reason = "killed: memory limit exceeded (OOMKilled); progress 43 %, 86 B of 200 B";
    assert!(message.contains(reason), "{message}");
    stage
        .wait_until("the restore is retried", async || {
            read_attempt(&stage).await > 1
        })
        .await;

    kubelet.configure(|behavior| {
        behavior.job_results.insert(job, JobResult::StillRunning);
    });
    create_ops_task(
        &stage,
        "back",
        json!({ "restore": { "toRevision": 7 } }),
        3600,
    )
    .await;
    let expected = "--to-revision=7".to_owned();
    let is_its = |job: &Job| job_args(job).contains(&expected);
    stage
        .wait_for("main-restore-0", "of the task", is_its)
        .await;
    complete_single_restore(&kubelet, restored.restore_message().await);
    wait_for_task(&stage, "back", TaskState::Succeeded).await;
    wait_recovery_over(&stage).await;
    controller.stop().await;
}

/// Deletes the PVC of a member, which a finalizer keeps. Returns the name of the PVC.
async fn start_pvc_deletion(stage: &TestEnv, member: &str) -> String {
    let pvcs = stage.api::<PersistentVolumeClaim>();
    let all = pvcs.list(&ListParams::default()).await.expect("a list");
    let mut names = all.items.iter().map(ResourceExt::name_any);
    let name = names.find(|name| name.ends_with(member)).expect("a PVC");
    set_pvc_finalizers(stage, &name, &["example.org/kept"]).await;
    let deleted = pvcs.delete(&name, &DeleteParams::default()).await;
    deleted.expect("delete a PVC");
    name
}

async fn set_pvc_finalizers(stage: &TestEnv, pvc: &str, finalizers: &[&str]) {
    let pvcs = stage.api::<PersistentVolumeClaim>();
    let finalizers = json!({ "metadata": { "finalizers": finalizers } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&finalizers));
    pvcs.patch(pvc, &params, &patch).await.expect("a patch");
}

#[tokio::test]
async fn last_survivor_is_not_stopped_while_its_pvc_is_terminating() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let mut proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    create_three_members(&stage, &proxied, "Automatic").await;
    let pvc = start_pvc_deletion(&stage, "main-2").await;
    lose_two_members(&mut proxied, &kubelet);
    let message = wait_for_reason(&stage, "SurvivorAtRisk").await;
    assert!(message.contains("main-2 has the newest copy"), "{message}");
    stage.wait_until_idle(&controller).await;
    stage.wait_for_replicas("main", 3).await;
    assert_eq!(
        stage.count_objects::<Job>().await,
        0,
        "no volume is written"
    );

    // The user has saved the data and removes the finalizer.
    proxied.cluster.members[2].kill();
    kubelet.configure(|behavior| {
        let lost = init_verdict("main-2", "wait", "dataLost");
        behavior.init_verdicts.insert("main-2".to_owned(), lost);
    });
    set_pvc_finalizers(&stage, &pvc, &[]).await;
    let pods = stage.api::<Pod>();
    let deleted = pods.delete("main-2", &DeleteParams::default()).await;
    deleted.expect("delete a pod");
    let job = stage
        .wait_for("main-restore-0", "there", |_: &Job| true)
        .await;
    let flags = job_args(&job);
    assert!(flags.iter().any(|flag| flag == "restore"), "{flags:?}");
    let prefers = |flag: &String| flag.starts_with("--prefer-data-dir");
    assert!(!flags.iter().any(prefers), "{flags:?}");
    controller.stop().await;
}
