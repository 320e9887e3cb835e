//! The status reports the progress of a restore, which the controller reads from the log of the Job.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::batch::v1::Job;
use mainstay_crds::Etcd;
use mainstay_crds::etcd::{RecoveryPhase, RecoveryStatus};
use serde_json::json;

use super::fake_kubelet::{FakeKubelet, JobResult};
use super::fault_injection::{self, FaultAction};
use super::recovery::{
    RESTORED_ADDRESS, RestoredServer, init_verdict, store_spec, wait_recovery_over,
};
use super::test_env::{RunningController, TestEnv};

/// Log of a restore at two times.
const EARLY_LOG: &str = concat!(
    r#"{"level":"INFO","message":"working","job":"restore","percent":1,"bytes":30,"total_bytes":3000}"#,
    "\n",
    r#"{"level":"INFO","message":"working","job":"restore","percent":43,"bytes":1300,"total_bytes":3000}"#,
    "\n",
    r#"{"level":"WARN","message":"object unusable, using another chain"}"#,
    "\n",
);
const LATE_LOG: &str = concat!(
    r#"{"level":"INFO","message":"working","job":"restore","percent":87,"bytes":2620,"total_bytes":3000}"#,
    "\n",
);

/// The log of the restore: the fault of its reads, and their number.
struct FakeLog {
    fault: Mutex<FaultAction>,
    reads: AtomicU32,
}

impl FakeLog {
    fn with_fault(fault: FaultAction) -> Arc<Self> {
        Arc::new(Self {
            fault: Mutex::new(fault),
            reads: AtomicU32::new(0),
        })
    }

    fn set_fault(&self, fault: FaultAction) {
        *self.fault.lock().unwrap() = fault;
    }

    fn record_read(&self) -> FaultAction {
        self.reads.fetch_add(1, Ordering::Relaxed);
        *self.fault.lock().unwrap()
    }

    fn reads(&self) -> u32 {
        self.reads.load(Ordering::Relaxed)
    }

    async fn wait_for_reads(&self, stage: &TestEnv, times: u32) {
        let before = self.reads();
        let has = async || self.reads() >= before + times;
        stage.wait_until("the log is read again", has).await;
    }
}

/// Starts a restore whose Job runs, and the controller that watches it.
async fn start_restore(
    stage: &TestEnv,
    kubelet: &FakeKubelet,
    log: &Arc<FakeLog>,
) -> (RestoredServer, RunningController) {
    let restored = RestoredServer::start("main-0").await;
    let lost = init_verdict("main-0", "restoreRequired", "backupExists");
    kubelet.configure(|behavior| {
        behavior.init_verdicts.insert("main-0".to_owned(), lost);
    });
    let reads = Arc::clone(log);
    let client = fault_injection::build_client(stage, move |request| {
        if request.uri().path().ends_with("/log") {
            return reads.record_read();
        }
        FaultAction::Forward
    })
    .await;
    let controller = stage.start_controller_via(client, |_| {});
    let spec = json!({ "replicas": 1, "etcd": { "clientPort": restored.port }, "backup": { "store": store_spec() } });
    stage.create_etcd("main", spec).await;
    stage
        .wait_for("main-restore-0", "there", |_: &Job| true)
        .await;
    assert_eq!(log.reads(), 0, "no log before the pod runs");
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-restore-0".to_owned(), JobResult::StillRunning);
    });
    (restored, controller)
}

/// Lets the Job succeed and waits until the cluster is settled.
async fn complete_restore(
    stage: &TestEnv,
    kubelet: &FakeKubelet,
    restored: &RestoredServer,
) -> RecoveryStatus {
    let output = restored.restore_message().await;
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-restore-0".to_owned(), JobResult::Succeeded(output));
        behavior.init_verdicts.clear();
        behavior
            .pod_addresses
            .insert("main-0".to_owned(), RESTORED_ADDRESS.to_owned());
    });
    wait_recovery_over(stage).await;
    recovery_status(&stage.wait_settled("main").await).expect("a recovery")
}

fn recovery_status(etcd: &Etcd) -> Option<RecoveryStatus> {
    etcd.status.as_ref()?.mainstay.as_ref()?.recovery.clone()
}

async fn wait_for_percent(stage: &TestEnv, percent: i32) -> Etcd {
    let what = format!("at {percent} %");
    let is = |etcd: &Etcd| {
        recovery_status(etcd).is_some_and(|reported| reported.percent == Some(percent))
    };
    stage.wait_for("main", &what, is).await
}

#[tokio::test]
async fn restore_progress_is_reported_and_written_only_when_it_changes() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let log = FakeLog::with_fault(FaultAction::RespondBody(EARLY_LOG));
    let (restored, controller) = start_restore(&stage, &kubelet, &log).await;
    let reported = recovery_status(&wait_for_percent(&stage, 43).await).unwrap();
    assert_eq!(reported.phase, RecoveryPhase::Restoring);
    let message = "restoring: 43 %, 1.2 KiB of 2.9 KiB";
    assert!(reported.message.ends_with(message), "{}", reported.message);

    // Times in the status may change meanwhile, so the wait retries; reading the log alone must not write.
    let version = async || stage.get_etcd("main").await.metadata.resource_version;
    stage
        .wait_until("an unchanged status is not written", async || {
            let before = version().await;
            log.wait_for_reads(&stage, 2).await;
            version().await == before
        })
        .await;

    log.set_fault(FaultAction::RespondBody(LATE_LOG));
    wait_for_percent(&stage, 87).await;
    // The last known progress stays when the log cannot be read.
    log.set_fault(FaultAction::RespondStatus(500));
    log.wait_for_reads(&stage, 1).await;
    stage.wait_until_idle(&controller).await;
    wait_for_percent(&stage, 87).await;

    let reported = complete_restore(&stage, &kubelet, &restored).await;
    assert_eq!((reported.percent, reported.revision), (None, Some(1)));
    stage.wait_until_idle(&controller).await;
    let read = log.reads();
    stage.reconcile_again(&controller).await;
    assert_eq!(read, log.reads(), "no log is read without a restore");
    controller.stop().await;
}

#[tokio::test]
async fn unreadable_log_does_not_stop_a_restore() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let log = FakeLog::with_fault(FaultAction::RespondStatus(403));
    let (restored, controller) = start_restore(&stage, &kubelet, &log).await;
    log.wait_for_reads(&stage, 1).await;
    log.set_fault(FaultAction::Hang);
    log.wait_for_reads(&stage, 1).await;
    stage.wait_until_idle(&controller).await;
    let silent = stage.get_etcd("main").await;
    let reported = recovery_status(&silent).expect("a recovery");
    assert_eq!(
        (reported.phase, reported.percent),
        (RecoveryPhase::Restoring, None)
    );
    assert_eq!(silent.status.unwrap().last_errors, None);
    let reported = complete_restore(&stage, &kubelet, &restored).await;
    assert_eq!(reported.phase, RecoveryPhase::Succeeded);
    controller.stop().await;
}
