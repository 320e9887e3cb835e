//! A volume has recorded a higher epoch than a recreated coordination document.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::fake_kubelet::{FakeKubelet, JobResult};
use super::recovery::{
    RestoredServer, complete_single_restore, job_args, lose_single_member, single_member_spec,
    wait_recovery_over,
};
use super::test_env::TestEnv;

const RESTORE_JOB: &str = "main-restore-0";
const COORDINATION_CONFIG_MAP: &str = "main-coordination";

/// Epoch in the fence token of a Job.
fn job_epoch(job: &Job) -> u64 {
    let flags = job_args(job);
    let token = flags.iter().find_map(|flag| flag.strip_prefix("--fence="));
    let epoch = token.and_then(|token| token.split('/').next());
    epoch.expect("a token").parse().expect("an epoch")
}

/// Epoch of the recovery lock.
fn lock_epoch(document: &ConfigMap) -> Option<u64> {
    let lock = document.data.as_ref()?.get("lock")?;
    serde_json::from_str::<Value>(lock).ok()?["epoch"].as_u64()
}

/// Deletes the coordination document and returns the Job of the recovery that starts anew.
async fn restart_recovery(stage: &TestEnv) -> Job {
    let first = stage.wait_for(RESTORE_JOB, "there", |_: &Job| true).await;
    let documents = stage.api::<ConfigMap>();
    documents
        .delete(COORDINATION_CONFIG_MAP, &DeleteParams::default())
        .await
        .expect("delete the document");
    let is_another = |job: &Job| job.uid() != first.uid();
    let second = stage.wait_for(RESTORE_JOB, "replaced", is_another).await;
    assert!(job_epoch(&second) > job_epoch(&first), "epochs grow");
    second
}

#[tokio::test]
async fn recovery_completes_after_raising_the_lock_epoch_above_the_volume() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let restored = RestoredServer::start("main-0").await;
    lose_single_member(&kubelet);
    let controller = stage.start_controller().await;
    stage
        .create_etcd("main", single_member_spec(&restored))
        .await;
    let refused = restart_recovery(&stage).await;
    let recorded_epoch = job_epoch(&refused) + 1_000_000;
    let output =
        json!({ "verdict": "in-use", "reason": "superseded", "overtakenBy": recorded_epoch });
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert(RESTORE_JOB.to_owned(), JobResult::Failed(output));
    });
    stage
        .wait_for(
            COORDINATION_CONFIG_MAP,
            "above the epoch of the volume",
            |map| lock_epoch(map) == Some(recorded_epoch + 1),
        )
        .await;
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert(RESTORE_JOB.to_owned(), JobResult::StillRunning);
    });
    let is_another = |job: &Job| job.uid() != refused.uid();
    let next = stage.wait_for(RESTORE_JOB, "retried", is_another).await;
    assert_eq!(job_epoch(&next), recorded_epoch + 1);
    complete_single_restore(&kubelet, restored.restore_message().await);
    wait_recovery_over(&stage).await;
    stage.wait_settled("main").await;
    stage.wait_until_idle(&controller).await;
    let document = stage
        .api::<ConfigMap>()
        .get(COORDINATION_CONFIG_MAP)
        .await
        .unwrap();
    assert_eq!(
        lock_epoch(&document),
        Some(recorded_epoch + 1),
        "the epoch was raised twice"
    );
    controller.stop().await;
}
