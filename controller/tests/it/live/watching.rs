//! While a restore goes on, its log tells how far it is, and the status tells that on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::batch::v1::Job;
use mainstay_crds::Etcd;
use mainstay_crds::etcd::{RecoveryPhase, RecoveryStatus};
use serde_json::json;

use super::kubelet::{Ends, Kubelet};
use super::recovery::{ADDRESS, Restored, over, store, verdict};
use super::stage::{Running, Stage};
use super::wire::{self, Fate};

/// What a restore logs at two moments, among other things.
const EARLIER: &str = concat!(
    r#"{"level":"INFO","message":"working","job":"restore","percent":1,"bytes":30,"total_bytes":3000}"#,
    "\n",
    r#"{"level":"INFO","message":"working","job":"restore","percent":43,"bytes":1300,"total_bytes":3000}"#,
    "\n",
    r#"{"level":"WARN","message":"object is unusable, taking another way"}"#,
    "\n",
);
const LATER: &str = concat!(
    r#"{"level":"INFO","message":"working","job":"restore","percent":87,"bytes":2620,"total_bytes":3000}"#,
    "\n",
);

/// The log of the restore: what happens to whoever asks for it, and how often somebody did.
struct Log {
    fate: Mutex<Fate>,
    reads: AtomicU32,
}

impl Log {
    fn that(fate: Fate) -> Arc<Self> {
        Arc::new(Self {
            fate: Mutex::new(fate),
            reads: AtomicU32::new(0),
        })
    }

    fn becomes(&self, fate: Fate) {
        *self.fate.lock().unwrap() = fate;
    }

    fn asked(&self) -> Fate {
        self.reads.fetch_add(1, Ordering::Relaxed);
        *self.fate.lock().unwrap()
    }

    fn reads(&self) -> u32 {
        self.reads.load(Ordering::Relaxed)
    }

    async fn is_read_again(&self, stage: &Stage, times: u32) {
        let before = self.reads();
        let has = async || self.reads() >= before + times;
        stage.eventually("the log is read again", has).await;
    }
}

/// A restore whose Job runs, and the controller that watches it.
async fn under_way(stage: &Stage, kubelet: &Kubelet, log: &Arc<Log>) -> (Restored, Running) {
    let restored = Restored::start("main-0").await;
    let lost = verdict("main-0", "restoreRequired", "backupExists");
    kubelet.order(|orders| {
        orders.verdicts.insert("main-0".to_owned(), lost);
    });
    let of_job = Arc::clone(log);
    let client = wire::client(stage, move |request| {
        if request.uri().path().ends_with("/log") {
            return of_job.asked();
        }
        Fate::Answered
    })
    .await;
    let controller = stage.control_through(client, |_| {});
    let spec = json!({ "replicas": 1, "etcd": { "clientPort": restored.port }, "backup": { "store": store() } });
    stage.create("main", spec).await;
    stage.until("main-restore-0", "there", |_: &Job| true).await;
    assert_eq!(log.reads(), 0, "nothing runs that could log");
    kubelet.order(|orders| {
        orders.jobs.insert("main-restore-0".to_owned(), Ends::Later);
    });
    (restored, controller)
}

/// Lets the Job end well, and the cluster come back.
async fn come_back(stage: &Stage, kubelet: &Kubelet, restored: &Restored) -> RecoveryStatus {
    let words = restored.words().await;
    kubelet.order(|orders| {
        orders
            .jobs
            .insert("main-restore-0".to_owned(), Ends::Well(words));
        orders.verdicts.clear();
        orders
            .addresses
            .insert("main-0".to_owned(), ADDRESS.to_owned());
    });
    over(stage).await;
    recovery(&stage.settled("main").await).expect("a recovery")
}

fn recovery(etcd: &Etcd) -> Option<RecoveryStatus> {
    etcd.status.as_ref()?.mainstay.as_ref()?.recovery.clone()
}

async fn at(stage: &Stage, percent: i32) -> Etcd {
    let what = format!("at {percent} %");
    let is = |etcd: &Etcd| recovery(etcd).is_some_and(|told| told.percent == Some(percent));
    stage.until("main", &what, is).await
}

#[tokio::test]
async fn a_restore_tells_how_far_it_is_and_nothing_twice() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let log = Log::that(Fate::Told(EARLIER));
    let (restored, controller) = under_way(&stage, &kubelet, &log).await;
    let told = recovery(&at(&stage, 43).await).unwrap();
    assert_eq!(told.phase, RecoveryPhase::Restoring);
    let words = "restoring: 43 %, 1.2 KiB of 2.9 KiB";
    assert!(told.message.ends_with(words), "{}", told.message);

    // Clocks move meanwhile and may be told of; that a log was read is not.
    let version = async || stage.etcd("main").await.metadata.resource_version;
    stage
        .eventually("what is the same is not written", async || {
            let before = version().await;
            log.is_read_again(&stage, 2).await;
            version().await == before
        })
        .await;

    log.becomes(Fate::Told(LATER));
    at(&stage, 87).await;
    // What was known stays when nobody can ask any more.
    log.becomes(Fate::Refused(500));
    log.is_read_again(&stage, 1).await;
    stage.at_rest(&controller).await;
    at(&stage, 87).await;

    let told = come_back(&stage, &kubelet, &restored).await;
    assert_eq!((told.percent, told.revision), (None, Some(1)));
    stage.at_rest(&controller).await;
    let read = log.reads();
    stage.look_again(&controller).await;
    assert_eq!(read, log.reads(), "at rest no log is read");
    controller.stop().await;
}

#[tokio::test]
async fn a_log_that_nobody_can_read_stops_no_restore() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let log = Log::that(Fate::Refused(403));
    let (restored, controller) = under_way(&stage, &kubelet, &log).await;
    log.is_read_again(&stage, 1).await;
    log.becomes(Fate::Silent);
    log.is_read_again(&stage, 1).await;
    stage.at_rest(&controller).await;
    let silent = stage.etcd("main").await;
    let told = recovery(&silent).expect("a recovery");
    assert_eq!((told.phase, told.percent), (RecoveryPhase::Restoring, None));
    assert_eq!(silent.status.unwrap().last_errors, None);
    let told = come_back(&stage, &kubelet, &restored).await;
    assert_eq!(told.phase, RecoveryPhase::Succeeded);
    controller.stop().await;
}
