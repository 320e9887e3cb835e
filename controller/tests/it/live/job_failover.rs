//! Every flow with Jobs completes when a new controller takes over after every few writes: each attempt has one Job, no volume
//! ever has two writers, and at the end nothing is left over and nothing is written.

use k8s_openapi::api::coordination::v1::Lease;
use mainstay_crds::ops::TaskState;
use mainstay_crds::{ConditionStatus, ConditionType, Etcd, EtcdOpsTask};
use serde_json::{Value, json};

use super::backup_jobs::{
    create_delta_backlog, create_drill_cluster, create_ops_task, wait_for_task,
};
use super::cluster::ProxiedCluster;
use super::fake_kubelet::{FakeKubelet, JobResult};
use super::fault_injection::{KillRate, run_with_kills};
use super::pins::{assert_pinned, get_job, has_ended, set_job_result};
use super::recovery::{
    RestoredServer, complete_quorum_restore, complete_single_restore, create_three_members,
    is_recovery_over, lose_single_member, lose_two_members, single_member_spec,
};
use super::steady_state::assert_nothing_to_write;
use super::tasks::{create_backed_up_member, wait_for_manual_recovery};
use super::test_env::TestEnv;
use super::watch_recorder::WatchRecorder;

const RESTORE_JOB: &str = "main-restore-0";

/// Starts the test environment with a fake kubelet and a recorder.
async fn start_env(kill_rate: KillRate) -> (TestEnv, FakeKubelet, WatchRecorder) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let kubelet = FakeKubelet::start(&stage);
    let recorder = WatchRecorder::start(&stage);
    (stage, kubelet, recorder)
}

/// Runs controllers for a few writes each until a Job exists.
async fn run_until_job(stage: &TestEnv, name: &str) {
    let is_there = async || get_job(stage, name).await.is_some();
    let kills = run_with_kills(stage, "the Job exists", is_there).await;
    stage.kill_rate.assert_enough_kills(kills, 1);
}

/// Ends a Job while no controller runs.
async fn finish_job_unobserved(
    stage: &TestEnv,
    kubelet: &FakeKubelet,
    name: &str,
    result: JobResult,
) {
    set_job_result(kubelet, name, result);
    stage.wait_for(name, "over", has_ended).await;
}

/// Runs controllers for a few writes each until the recovery is over.
async fn run_until_recovered(stage: &TestEnv) {
    let kills = run_with_kills(stage, "the recovery is over", async || {
        is_recovery_over(stage).await
    })
    .await;
    stage.kill_rate.assert_enough_kills(kills, 1);
}

#[tokio::test]
async fn single_member_is_restored_by_one_job_per_attempt() {
    restore_single_member(KillRate::Low).await;
}

pub(super) async fn restore_single_member(kill_rate: KillRate) {
    let (stage, kubelet, recorder) = start_env(kill_rate).await;
    let restored = RestoredServer::start("main-0").await;
    lose_single_member(&kubelet);
    stage
        .create_etcd("main", single_member_spec(&restored))
        .await;
    run_until_job(&stage, RESTORE_JOB).await;
    // The first attempt fails, the second succeeds.
    let output = json!({ "verdict": "store-unavailable", "reason": "store unreachable" });
    finish_job_unobserved(&stage, &kubelet, RESTORE_JOB, JobResult::Failed(output)).await;
    set_job_result(&kubelet, RESTORE_JOB, JobResult::StillRunning);
    let is_retried = async || recorder.count_jobs(RESTORE_JOB) == 2;
    run_with_kills(&stage, "a second Job exists", is_retried).await;
    complete_single_restore(&kubelet, restored.restore_message().await);
    run_until_recovered(&stage).await;
    assert_nothing_to_write(&stage).await;
    stage.wait_settled("main").await;
    assert_eq!(recorder.count_jobs(RESTORE_JOB), 2);
}

/// Asserts that each of three volumes was written by one Job and one member was added to the new cluster.
async fn assert_recovered_once(
    stage: &TestEnv,
    recorder: &WatchRecorder,
    restored: &RestoredServer,
) {
    let is_joined = async || restored.count_learners().await > 0;
    run_with_kills(stage, "the first other member is a learner", is_joined).await;
    assert_nothing_to_write(stage).await;
    assert_eq!(restored.count_learners().await, 1);
    for ordinal in 0..3 {
        let job = format!("main-restore-{ordinal}");
        assert_eq!(recorder.count_jobs(&job), 1, "{job}");
    }
}

#[tokio::test]
async fn lost_quorum_is_recovered_by_one_job_per_volume() {
    recover_quorum(KillRate::Low).await;
}

pub(super) async fn recover_quorum(kill_rate: KillRate) {
    let (stage, kubelet, recorder) = start_env(kill_rate).await;
    let mut proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    let port = create_three_members(&stage, &proxied, "Automatic").await;
    controller.kill();
    lose_two_members(&mut proxied, &kubelet);
    run_until_job(&stage, "main-restore-2").await;
    drop(proxied);
    let restored = RestoredServer::start_on_port("main-2", port).await;
    complete_quorum_restore(&kubelet, restored.restore_message().await);
    run_until_recovered(&stage).await;
    assert_recovered_once(&stage, &recorder, &restored).await;
}

/// Whether a task has succeeded and its recovery has been cleaned up.
async fn is_task_done(stage: &TestEnv, name: &str) -> bool {
    let task = stage.api::<EtcdOpsTask>().get(name).await.expect("a task");
    let now = task.status.as_ref().and_then(|status| status.state);
    let is_final = now.is_some_and(TaskState::is_final);
    assert!(!is_final || now == Some(TaskState::Succeeded), "{task:#?}");
    is_final && is_recovery_over(stage).await
}

#[tokio::test]
async fn task_restores_to_a_point_in_time_by_one_job() {
    restore_by_task(KillRate::Low).await;
}

pub(super) async fn restore_by_task(kill_rate: KillRate) {
    let (stage, kubelet, recorder) = start_env(kill_rate).await;
    let controller = stage.start_controller().await;
    let (restored, serving) = create_backed_up_member(&stage, &kubelet).await;
    controller.kill();
    let back = json!({ "restore": { "toTime": "2026-01-31T11:59:00Z" } });
    create_ops_task(&stage, "back", back, 3600).await;
    run_until_job(&stage, RESTORE_JOB).await;
    complete_single_restore(&kubelet, restored.restore_message().await);
    let is_done = async || is_task_done(&stage, "back").await;
    run_with_kills(&stage, "the task is done", is_done).await;
    let task = wait_for_task(&stage, "back", TaskState::Succeeded).await;
    let result = task.status.unwrap().mainstay.unwrap();
    assert!(result.safety_snapshot.is_some(), "{result:?}");
    assert_nothing_to_write(&stage).await;
    stage.wait_settled("main").await;
    assert_eq!(recorder.count_jobs(RESTORE_JOB), 1);
    serving.abort();
}

#[tokio::test]
async fn task_recovers_a_quorum_by_one_job_per_volume() {
    recover_quorum_by_task(KillRate::Low).await;
}

pub(super) async fn recover_quorum_by_task(kill_rate: KillRate) {
    let (stage, kubelet, recorder) = start_env(kill_rate).await;
    let mut proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    let port = create_three_members(&stage, &proxied, "Manual").await;
    lose_two_members(&mut proxied, &kubelet);
    wait_for_manual_recovery(&stage).await;
    controller.kill();
    let named = json!({ "recoverQuorum": { "fromMember": "main-2" } });
    create_ops_task(&stage, "recover", named, 3600).await;
    run_until_job(&stage, "main-restore-2").await;
    drop(proxied);
    let restored = RestoredServer::start_on_port("main-2", port).await;
    complete_quorum_restore(&kubelet, restored.restore_message().await);
    let is_done = async || is_task_done(&stage, "recover").await;
    run_with_kills(&stage, "the task is done", is_done).await;
    assert_recovered_once(&stage, &recorder, &restored).await;
}

/// Whether the outcome of a Job is published and the Job deleted. Asserts that it is not deleted before.
async fn is_outcome_published(stage: &TestEnv, name: &str, type_: &ConditionType) -> bool {
    let job = get_job(stage, name).await;
    let etcd = stage.get_etcd("main").await;
    let conditions = etcd.status.and_then(|status| status.conditions);
    let mut conditions = conditions.into_iter().flatten();
    let is_published =
        conditions.any(|one| one.type_ == *type_ && one.status == ConditionStatus::True);
    let stays = job
        .as_ref()
        .is_some_and(|job| job.metadata.deletion_timestamp.is_none());
    assert!(is_published || stays, "the outcome of {name} is lost");
    is_published && job.is_none()
}

/// Runs controllers for a few writes each until a Job exists that reads the backup. Asserts its pin meanwhile.
async fn run_until_pinned_job(stage: &TestEnv, name: &str, pin: &str) {
    let kills = run_with_kills(stage, "the Job exists", async || {
        assert_pinned(stage, name, pin).await;
        get_job(stage, name).await.is_some()
    });
    stage.kill_rate.assert_enough_kills(kills.await, 1);
    assert_pinned(stage, name, pin).await;
}

#[tokio::test]
async fn deltas_are_compacted_by_one_job_deleted_after_its_outcome_report() {
    compact_deltas(KillRate::Low).await;
}

pub(super) async fn compact_deltas(kill_rate: KillRate) {
    const COMPACTION_JOB: &str = "main-compactor";
    let (stage, kubelet, recorder) = start_env(kill_rate).await;
    let launched = run_until_pinned_job(&stage, COMPACTION_JOB, "pin.compaction");
    tokio::join!(create_delta_backlog(&stage), launched);
    let output =
        json!({ "verdict": "compacted", "revision": 120, "snapshot": "Full-00000000-00000120-1" });
    finish_job_unobserved(
        &stage,
        &kubelet,
        COMPACTION_JOB,
        JobResult::Succeeded(output),
    )
    .await;
    let type_ = ConditionType::LastSnapshotCompactionSucceeded;
    let is_published = async || is_outcome_published(&stage, COMPACTION_JOB, &type_).await;
    run_with_kills(
        &stage,
        "the outcome is published, and the Job is deleted",
        is_published,
    )
    .await;
    let lease = stage.api::<Lease>().get("main-full-snap").await.unwrap();
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(
        holder.as_deref(),
        Some("120"),
        "the Lease has the new snapshot"
    );
    assert_nothing_to_write(&stage).await;
    assert_eq!(recorder.count_jobs(COMPACTION_JOB), 1);
}

fn drill_schedule_patch(schedule: &str) -> Value {
    json!({ "spec": { "mainstay": { "restoreDrill": { "schedule": schedule } } } })
}

#[tokio::test]
async fn restore_drill_is_one_job_deleted_after_its_outcome_report() {
    Box::pin(run_restore_drill(KillRate::Low)).await;
}

pub(super) async fn run_restore_drill(kill_rate: KillRate) {
    const DRILL_JOB: &str = "main-restore-drill";
    let (stage, kubelet, recorder) = start_env(kill_rate).await;
    let launched = run_until_pinned_job(&stage, DRILL_JOB, "pin.restore-drill");
    tokio::join!(create_drill_cluster(&stage), launched);
    // No further drill, so that everything that follows belongs to this one.
    stage
        .patch_etcd("main", drill_schedule_patch("0 0 29 2 *"))
        .await;
    let output = json!({ "verdict": "restored", "revision": 100 });
    finish_job_unobserved(&stage, &kubelet, DRILL_JOB, JobResult::Succeeded(output)).await;
    let type_ = ConditionType::LastRestoreDrillSucceeded;
    let is_published = async || is_outcome_published(&stage, DRILL_JOB, &type_).await;
    run_with_kills(
        &stage,
        "the outcome is published, and the Job is deleted",
        is_published,
    )
    .await;
    let is_it = |etcd: &Etcd| {
        let status = etcd.status.as_ref()?.mainstay.as_ref()?;
        let drill = status.restore_drill.as_ref()?;
        Some((drill.succeeded, drill.revision))
    };
    let etcd = stage.get_etcd("main").await;
    assert_eq!(is_it(&etcd), Some((true, Some(100))));
    assert_nothing_to_write(&stage).await;
    assert_eq!(recorder.count_jobs(DRILL_JOB), 1);
}
