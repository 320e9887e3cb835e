//! Leader election: of several controllers only the leader writes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams, PostParams};
use mainstay_controller::config::OperatorConfiguration;
use mainstay_crds::Etcd;
use serde_json::{Value, json};

use super::fault_injection::{self, FaultAction, is_write};
use super::test_env::{RunningController, TestEnv};

const LEASE_NAME: &str = "druid-leader-election";

/// Enables leader election with the production durations and one attempt per second.
pub(super) fn enable_election(config: &mut OperatorConfiguration) {
    let election = &mut config.leader_election;
    election.enabled = true;
    election.lease_duration = Duration::from_secs(15);
    election.renew_deadline = Duration::from_secs(10);
    election.retry_period = Duration::from_secs(1);
}

#[tokio::test]
async fn standby_controller_takes_over_when_the_leader_is_killed() {
    let stage = TestEnv::start().await;
    let first = stage.start_controller_with(enable_election).await;
    stage.create_etcd("one", json!({ "replicas": 1 })).await;
    stage.wait_for_replicas("one", 1).await;
    let second = stage.start_controller_with(enable_election).await;
    stage.create_etcd("two", json!({ "replicas": 1 })).await;
    stage.wait_for_replicas("two", 1).await;
    assert_eq!(
        second.metrics.total_writes(),
        0,
        "the second controller wrote, too"
    );

    first.kill();
    stage.create_etcd("three", json!({ "replicas": 1 })).await;
    stage.wait_for_replicas("three", 1).await;
    assert!(second.metrics.total_writes() > 0);
    second.stop().await;
}

#[tokio::test]
async fn controller_that_loses_its_lease_exits() {
    let stage = TestEnv::start().await;
    let controller = stage.start_controller_with(enable_election).await;
    stage.create_etcd("one", json!({ "replicas": 1 })).await;
    stage.wait_for_replicas("one", 1).await;
    let stolen = json!({ "spec": { "holderIdentity": "other", "leaseDurationSeconds": 3600 } });
    let leases = stage.api::<Lease>();
    leases
        .patch(LEASE_NAME, &PatchParams::default(), &Patch::Merge(&stolen))
        .await
        .unwrap();
    let ended = tokio::time::timeout(Duration::from_mins(1), controller.wait())
        .await
        .expect("it ends in time");
    let error = ended.expect_err("the controller ends with an error");
    assert!(
        error.to_string().contains("leadership was lost"),
        "{error:#}"
    );
}

async fn patch_lease(leases: &Api<Lease>, spec: Value) {
    let patch = json!({ "spec": spec });
    leases
        .patch(LEASE_NAME, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

#[tokio::test]
async fn released_lease_without_a_holder_is_acquired() {
    let stage = TestEnv::start().await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": LEASE_NAME },
        "spec": { "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z" },
    });
    let lease: Lease = serde_json::from_value(lease).unwrap();
    let leases = stage.api::<Lease>();
    leases.create(&PostParams::default(), &lease).await.unwrap();
    // The retry period is also the timeout of the release.
    let slow_retry = |config: &mut OperatorConfiguration| {
        enable_election(config);
        config.leader_election.retry_period = Duration::from_secs(5);
    };
    let controller = stage.start_controller_with(slow_retry).await;
    stage.create_etcd("one", json!({ "replicas": 1 })).await;
    stage.wait_for_replicas("one", 1).await;
    controller.stop().await;
    let given_back = leases.get(LEASE_NAME).await.unwrap().spec.unwrap();
    assert_eq!(given_back.holder_identity.as_deref(), Some(""));
}

/// The writers in the order of their writes. Every started controller has its own number.
#[derive(Clone, Default)]
struct WriteLog(Arc<Mutex<Vec<(usize, String)>>>);

impl WriteLog {
    /// Starts a controller whose writes of the Lease are delayed by varying times.
    async fn start_controller(&self, stage: &TestEnv, number: usize) -> RunningController {
        let (writers, attempts) = (self.clone(), Mutex::new(number));
        let client = fault_injection::build_client(stage, move |request| {
            if !is_write(request) {
                return FaultAction::Forward;
            }
            // Managed objects are applied with PATCH; a POST to /leases creates the election Lease.
            let path = request.uri().path();
            if path.ends_with(LEASE_NAME) || path.ends_with("/leases") {
                let mut attempts = attempts.lock().unwrap();
                *attempts += 1;
                let late = u64::try_from(*attempts * 7 % 5).unwrap();
                return FaultAction::Delay(Duration::from_millis(late * 600));
            }
            let what = format!("{} {}", request.method(), request.uri().path());
            writers.0.lock().unwrap().push((number, what));
            FaultAction::Forward
        })
        .await;
        stage.start_controller_via(client, enable_election)
    }

    fn last_writer(&self) -> Option<usize> {
        self.0.lock().unwrap().last().map(|(number, _)| *number)
    }
}

#[tokio::test]
async fn two_controllers_never_write_at_the_same_time() {
    contend_for_lease(2).await;
}

/// Three controllers contend for the Lease until this number of leaders was seen.
pub(super) async fn contend_for_lease(leaders: usize) {
    let stage = TestEnv::start().await;
    stage.create_etcd("main", json!({ "replicas": 1 })).await;
    let etcds = stage.api::<Etcd>();
    let changes = tokio::spawn(async move {
        // Constant spec changes, so that the leader always has something to write.
        for number in 0_u64.. {
            let patch = json!({ "spec": { "annotations": { "change": number.to_string() } } });
            etcds
                .patch("main", &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .ok();
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    });
    let writers = WriteLog::default();
    let mut running: Vec<(usize, RunningController)> = Vec::new();
    let (mut started, mut led) = (0, Vec::new());
    while led.len() < leaders {
        while running.len() < 3 {
            running.push((started, writers.start_controller(&stage, started).await));
            started += 1;
        }
        let before = led.last().copied();
        stage
            .wait_until("another controller writes", async || {
                writers.last_writer() != before
            })
            .await;
        let leader = writers.last_writer().unwrap();
        led.push(leader);
        // Frees the Lease while its holder still runs.
        let free = json!({ "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z" });
        patch_lease(&stage.api(), free).await;
        stage
            .wait_until("a controller holds the Lease", async || {
                let lease = stage.api::<Lease>().get(LEASE_NAME).await.unwrap();
                lease
                    .spec
                    .unwrap()
                    .holder_identity
                    .is_some_and(|holder| !holder.is_empty())
            })
            .await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let position = running.iter().position(|(number, _)| *number == leader);
        if let Some((_, gone)) = position.map(|at| running.remove(at)) {
            gone.kill();
        }
    }
    changes.abort();
    for (_, controller) in running {
        controller.kill();
    }
    let mut turns = writers.0.lock().unwrap().clone();
    turns.dedup_by_key(|(number, _)| *number);
    // Two leaders at once would alternate in the log.
    let each: BTreeSet<usize> = turns.iter().map(|(number, _)| *number).collect();
    let is_once_each = turns.len() == each.len();
    assert!(is_once_each, "two controllers wrote alternately: {turns:?}");
}
