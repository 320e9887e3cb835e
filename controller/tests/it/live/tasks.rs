//! Effects of `EtcdOpsTasks`: defragmentation and leader transfer on real members, and restores to the requested state.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::DeleteParams;
use mainstay_crds::Etcd;
use mainstay_crds::ops::TaskState;
use serde_json::json;
use tokio::task::JoinHandle;

use super::backup_jobs::{create_ops_task, last_error_code, start_sidecar, wait_for_task};
use super::cluster::ProxiedCluster;
use super::fake_kubelet::{FakeKubelet, JobResult};
use super::recovery::{
    RESTORED_ADDRESS, RestoredServer, complete_quorum_restore, create_three_members,
    has_member_pods, job_args, lose_single_member, lose_two_members, recovery_condition,
    store_spec, wait_recovery_over,
};
use super::test_env::TestEnv;

/// Size of a value in bytes and number of writes: enough for defragmentation to shrink the database visibly.
const VALUE_BYTES: usize = 10_000;
const VALUE_COUNT: usize = 400;

async fn list_db_sizes(proxied: &ProxiedCluster) -> Vec<i64> {
    let mut sizes = Vec::new();
    for member in &proxied.cluster.members {
        sizes.push(member.status().await.db_size());
    }
    sizes
}

#[tokio::test]
async fn members_are_defragmented_and_leadership_is_moved_on_request() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let leader = proxied.cluster.leader().await;
    let first = &proxied.cluster.members[leader];
    let mut client = first.client().await;
    for _ in 0..VALUE_COUNT {
        let value = vec![b'x'; VALUE_BYTES];
        client.put("key", value, None).await.expect("a write");
    }
    first.compact(first.revision().await).await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", proxied.spec(3)).await;
    stage.wait_settled("main").await;
    let before = list_db_sizes(&proxied).await;
    create_ops_task(&stage, "tidy", json!({ "defragment": {} }), 3600).await;
    let task = wait_for_task(&stage, "tidy", TaskState::Succeeded).await;
    let summary = task.status.unwrap().mainstay.unwrap().summary;
    assert_eq!(summary, "Defragmented 3 members");
    for (before, after) in before.iter().zip(list_db_sizes(&proxied).await) {
        assert!(after < before / 2, "{before} became {after}");
    }
    let unknown = json!({ "defragment": { "members": ["unknown"] } });
    create_ops_task(&stage, "unknown", unknown, 3600).await;
    let task = wait_for_task(&stage, "unknown", TaskState::Failed).await;
    assert_eq!(last_error_code(&task), "ERR_INVALID_TASK");
    let leader = proxied.cluster.leader().await;
    let target = proxied.cluster.next_member(leader);
    let to = json!({ "moveLeader": { "to": format!("main-{target}") } });
    create_ops_task(&stage, "lead", to, 3600).await;
    wait_for_task(&stage, "lead", TaskState::Succeeded).await;
    assert_eq!(proxied.cluster.wait_for_new_leader(leader).await, target);
    controller.stop().await;
}

/// Creates a cluster of one with a store, a sidecar and a member that serves.
pub(super) async fn create_backed_up_member(
    stage: &TestEnv,
    kubelet: &FakeKubelet,
) -> (RestoredServer, JoinHandle<()>) {
    let restored = RestoredServer::start("main-0").await;
    let (port, serving) = start_sidecar().await;
    kubelet.configure(|behavior| {
        behavior
            .pod_addresses
            .insert("main-0".to_owned(), RESTORED_ADDRESS.to_owned());
    });
    let spec = json!({
        "replicas": 1, "etcd": { "clientPort": restored.port },
        "backup": { "store": store_spec(), "port": port },
    });
    stage.create_etcd("main", spec).await;
    stage.wait_settled("main").await;
    (restored, serving)
}

/// Entries of the coordination document.
async fn read_coordination_entries(stage: &TestEnv) -> BTreeMap<String, String> {
    let found = stage.api::<ConfigMap>().get("main-coordination").await;
    found.expect("a document").data.unwrap_or_default()
}

#[tokio::test]
async fn restore_dry_run_only_verifies_the_backup() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    let (_restored, serving) = create_backed_up_member(&stage, &kubelet).await;
    let full = "Full-00000000-00000042-1800000000.gz";
    let dry = json!({ "restore": { "fromFull": full, "dryRun": true } });
    create_ops_task(&stage, "dry", dry, 3600).await;
    let job = stage.wait_for("main-verify", "there", |_: &Job| true).await;
    let flags = job_args(&job);
    for flag in [format!("--from={full}"), "--to-revision=42".to_owned()] {
        assert!(flags.contains(&flag), "{flags:?}");
    }
    let entries = read_coordination_entries(&stage).await;
    assert!(entries.contains_key("pin.verification"), "{entries:?}");
    kubelet.configure(|behavior| {
        let output = json!({ "verdict": "restorable", "reaches": 42 });
        behavior
            .job_results
            .insert("main-verify".to_owned(), JobResult::Succeeded(output));
    });
    let task = wait_for_task(&stage, "dry", TaskState::Succeeded).await;
    assert_eq!(task.status.unwrap().mainstay.unwrap().revision, Some(42));
    stage
        .wait_until("its Job and its pin are deleted", async || {
            let is_pinned = read_coordination_entries(&stage)
                .await
                .contains_key("pin.verification");
            stage.count_objects::<Job>().await == 0 && !is_pinned
        })
        .await;
    stage.wait_for_replicas("main", 1).await;
    controller.stop().await;
    serving.abort();
}

#[tokio::test]
async fn restore_reaches_the_requested_time() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    let (restored, serving) = create_backed_up_member(&stage, &kubelet).await;
    let moment = "2026-01-31T11:59:00Z";
    let back = json!({ "restore": { "toTime": moment } });
    create_ops_task(&stage, "back", back, 3600).await;
    let job = stage
        .wait_for("main-restore-0", "there", |_: &Job| true)
        .await;
    let flags = job_args(&job);
    let expected = format!("--to-time={moment}");
    assert!(flags.contains(&expected), "{flags:?}");
    let fence = flags.iter().find(|flag| flag.starts_with("--fence="));
    let is_its = |fence: &String| fence.contains("/task-");
    assert!(fence.is_some_and(is_its), "{flags:?}");
    let recorded = &read_coordination_entries(&stage).await["member.main-0"];
    assert!(recorded.contains("restoring"), "{recorded}");
    let output = restored.restore_message().await;
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-restore-0".to_owned(), JobResult::Succeeded(output));
    });
    wait_for_task(&stage, "back", TaskState::Succeeded).await;
    wait_recovery_over(&stage).await;
    let recorded = &read_coordination_entries(&stage).await["member.main-0"];
    assert!(recorded.contains("confirmed"), "{recorded}");
    controller.stop().await;
    serving.abort();
}

#[tokio::test]
async fn restore_uses_only_the_requested_full_snapshot() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    let (restored, serving) = create_backed_up_member(&stage, &kubelet).await;
    let full = "Full-00000000-00000017-1700000000.gz";
    let back = json!({ "restore": { "fromFull": full } });
    create_ops_task(&stage, "back", back, 3600).await;
    let job = stage
        .wait_for("main-restore-0", "there", |_: &Job| true)
        .await;
    let flags = job_args(&job);
    for flag in [format!("--from={full}"), "--to-revision=17".to_owned()] {
        assert!(flags.contains(&flag), "{flags:?}");
    }
    let elsewhere = ["--to-time", "--prefer-data-dir"];
    let is_elsewhere = |flag: &String| elsewhere.iter().any(|one| flag.starts_with(one));
    assert!(!flags.iter().any(is_elsewhere), "{flags:?}");
    assert!(!has_member_pods(&stage).await, "a pod may use the volume");
    let incident = &read_coordination_entries(&stage).await["incident"];
    assert!(incident.contains(full), "{incident}");
    let output = restored.restore_message().await;
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-restore-0".to_owned(), JobResult::Succeeded(output));
    });
    let task = wait_for_task(&stage, "back", TaskState::Succeeded).await;
    let result = task.status.unwrap().mainstay.unwrap();
    let saved = result.safety_snapshot.as_deref();
    assert_eq!(saved, Some("Full-00000000-00000042-1800000000.gz"));
    assert_eq!(result.revision, Some(1), "the revision the Job reports");
    wait_recovery_over(&stage).await;
    stage.wait_for_replicas("main", 1).await;
    controller.stop().await;
    serving.abort();
}

/// Waits until the status reports that a user has to start the recovery.
pub(super) async fn wait_for_manual_recovery(stage: &TestEnv) {
    stage
        .wait_for("main", "waiting for a user", |etcd: &Etcd| {
            recovery_condition(etcd).is_some_and(|one| one.reason == "ManualRecovery")
        })
        .await;
}

#[tokio::test]
async fn lost_quorum_is_recovered_from_the_requested_member() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let mut proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    let port = create_three_members(&stage, &proxied, "Manual").await;
    lose_two_members(&mut proxied, &kubelet);
    wait_for_manual_recovery(&stage).await;
    let named = |dry: bool| json!({ "recoverQuorum": { "fromMember": "main-2", "dryRun": dry } });
    create_ops_task(&stage, "dry", named(true), 3600).await;
    let task = wait_for_task(&stage, "dry", TaskState::Succeeded).await;
    let plan = task.status.unwrap().mainstay.unwrap().summary;
    assert!(plan.contains("main-2 is restored from"), "{plan}");
    stage.wait_for_replicas("main", 3).await;
    create_ops_task(&stage, "recover", named(false), 3600).await;
    let job = stage
        .wait_for("main-restore-2", "there", |_: &Job| true)
        .await;
    let flags = job_args(&job);
    let prefers = |flag: &String| flag.starts_with("--prefer-data-dir=");
    assert!(flags.iter().any(prefers), "{flags:?}");
    drop(proxied);
    let restored = RestoredServer::start_on_port("main-2", port).await;
    let output = restored.restore_message().await;
    complete_quorum_restore(&kubelet, output);
    wait_for_task(&stage, "recover", TaskState::Succeeded).await;
    controller.stop().await;
}

#[tokio::test]
async fn recovery_with_a_lost_document_stops_its_job_before_a_pod_starts() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    lose_single_member(&kubelet);
    let controller = stage.start_controller().await;
    let spec = json!({ "replicas": 1, "backup": { "store": store_spec() } });
    stage.create_etcd("main", spec).await;
    let job = stage
        .wait_for("main-restore-0", "there", |_: &Job| true)
        .await;
    let documents = stage.api::<ConfigMap>();
    documents
        .delete("main-coordination", &DeleteParams::default())
        .await
        .expect("delete the document");
    let jobs = stage.api::<Job>();
    stage
        .wait_until("a new recovery has a new Job", async || {
            let found = jobs.get_opt("main-restore-0").await.expect("get a Job");
            let runs = has_member_pods(&stage).await;
            let still = jobs.get_opt("main-restore-0").await.expect("get a Job");
            let is_first =
                |one: &Option<Job>| one.as_ref().is_some_and(|one| one.uid() == job.uid());
            assert!(!(runs && is_first(&still)), "a pod may use the volume");
            found.is_some() && !is_first(&found)
        })
        .await;
    assert_eq!(stage.count_objects::<StatefulSet>().await, 1);
    controller.stop().await;
}
