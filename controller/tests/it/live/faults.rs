//! The controller converges when it is killed, when others write, and when requests fail; nothing is created twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::client::Body;
use mainstay_crds::{Etcd, OperationState};
use serde_json::json;

use super::cluster::start_settled_three;
use super::fake_kubelet::FakeKubelet;
use super::fault_injection::{self, FaultAction, KillRate, is_write, run_with_kills};
use super::test_env::TestEnv;

/// Number of objects of each kind.
async fn count_parts(stage: &TestEnv) -> [usize; 7] {
    [
        stage.count_objects::<StatefulSet>().await,
        stage.count_objects::<Service>().await,
        stage.count_objects::<ConfigMap>().await,
        stage.count_objects::<Lease>().await,
        stage.count_objects::<Role>().await,
        stage.count_objects::<RoleBinding>().await,
        stage.count_objects::<ServiceAccount>().await,
    ]
}

async fn is_etcd_gone(stage: &TestEnv) -> bool {
    stage.api::<Etcd>().get_opt("main").await.unwrap().is_none()
}

#[tokio::test]
async fn lost_writes_and_lost_responses_do_not_change_the_outcome() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let (writes, lost) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&lost);
    let client = fault_injection::build_client(&stage, move |request| {
        if !is_write(request) {
            return FaultAction::Forward;
        }
        let number = writes.fetch_add(1, Ordering::Relaxed);
        let fault = match (number % 3, number % 5) {
            (2, _) => FaultAction::DropRequest,
            (_, 4) => FaultAction::DropResponse,
            _ => return FaultAction::Forward,
        };
        counted.fetch_add(1, Ordering::Relaxed);
        fault
    })
    .await;
    let controller = stage.start_controller_via(client, |_| {});
    stage.create_etcd("main", json!({ "replicas": 3 })).await;
    stage.wait_settled("main").await;
    stage
        .patch_etcd("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    stage.wait_for_replicas("main", 0).await;
    stage.wait_settled("main").await;
    assert!(
        lost.load(Ordering::Relaxed) > 5,
        "too few faults: the test proves nothing"
    );
    assert_eq!(stage.count_objects::<Lease>().await, 3);
    let etcds = stage.api::<Etcd>();
    etcds
        .delete("main", &DeleteParams::default())
        .await
        .unwrap();
    stage
        .wait_until("the Etcd is deleted", async || is_etcd_gone(&stage).await)
        .await;
    assert_eq!(stage.count_objects::<Lease>().await, 0);
    drop(kubelet);
    controller.stop().await;
}

/// Whether a cluster of this size is reconciled.
pub(super) async fn is_settled(stage: &TestEnv, replicas: i32) -> bool {
    let etcd = stage.get_etcd("main").await;
    let generation = etcd.metadata.generation;
    let status = etcd.status.unwrap_or_default();
    let is_done = |state: OperationState| state == OperationState::Succeeded;
    let set = stage.api::<StatefulSet>().get_opt("main").await.unwrap();
    status
        .last_operation
        .is_some_and(|last| is_done(last.state))
        && status.observed_generation == generation
        && set.is_some_and(|set| set.spec.unwrap().replicas == Some(replicas))
}

#[tokio::test]
async fn lifecycle_completes_while_controllers_are_killed() {
    run_full_lifecycle(KillRate::Low).await;
}

pub(super) async fn run_full_lifecycle(kill_rate: KillRate) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let kubelet = FakeKubelet::start(&stage);
    stage.create_etcd("main", json!({ "replicas": 1 })).await;
    let settled = async |replicas| is_settled(&stage, replicas).await;
    let kills = run_with_kills(&stage, "the cluster is created", async || settled(1).await).await;
    kill_rate.assert_enough_kills(kills, 5);
    let whole = count_parts(&stage).await;
    assert_eq!(whole[0], 1);
    assert_eq!(whole[3], 1);

    stage
        .patch_etcd("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    run_with_kills(&stage, "the cluster is hibernated", async || {
        settled(0).await
    })
    .await;
    stage
        .patch_etcd("main", json!({ "spec": { "replicas": 1 } }))
        .await;
    run_with_kills(&stage, "the cluster is awake", async || settled(1).await).await;
    assert_eq!(
        count_parts(&stage).await,
        whole,
        "an object is duplicated or missing"
    );

    let etcds = stage.api::<Etcd>();
    etcds
        .delete("main", &DeleteParams::default())
        .await
        .unwrap();
    run_with_kills(&stage, "the Etcd is deleted", async || {
        is_etcd_gone(&stage).await
    })
    .await;
    assert_eq!(count_parts(&stage).await, [0; 7]);
    assert_eq!(stage.count_objects::<PersistentVolumeClaim>().await, 1);
    drop(kubelet);
}

/// UIDs of the member pods.
pub(super) async fn list_pod_uids(stage: &TestEnv) -> BTreeSet<String> {
    let members = ListParams::default().labels("app.kubernetes.io/component=etcd-statefulset");
    let list = stage.api::<Pod>().list(&members).await.unwrap();
    list.iter().filter_map(ResourceExt::uid).collect()
}

#[tokio::test]
async fn rollout_and_scale_in_complete_while_controllers_are_killed() {
    roll_and_scale_in(KillRate::Low).await;
}

pub(super) async fn roll_and_scale_in(kill_rate: KillRate) {
    let stage = TestEnv::with_kill_rate(kill_rate).await;
    let (kubelet, proxied, controller) = start_settled_three(&stage).await;
    controller.kill();

    let old = list_pod_uids(&stage).await;
    let rolled = json!({ "spec": { "annotations": { "rolled": "once" } } });
    stage.patch_etcd("main", rolled).await;
    let is_rolled = async || {
        let new = list_pod_uids(&stage).await;
        is_settled(&stage, 3).await && new.len() == 3 && new.is_disjoint(&old)
    };
    let kills = run_with_kills(&stage, "all pods are replaced", is_rolled).await;
    kill_rate.assert_enough_kills(kills, 3);

    stage
        .patch_etcd("main", json!({ "spec": proxied.spec(1) }))
        .await;
    let is_alone = async || is_settled(&stage, 1).await;
    run_with_kills(&stage, "two members are removed", is_alone).await;
    assert_eq!(proxied.member_names().await.0, ["main-0"]);
    assert_eq!(stage.count_objects::<Lease>().await, 1);
    drop(kubelet);
}

#[tokio::test]
async fn error_at_any_single_write_only_delays() {
    const CLUSTERS: u32 = 24;
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let writes = Mutex::new(HashMap::<String, u32>::new());
    let failed = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&failed);
    // The n-th write for the n-th cluster fails, each in its own way.
    let client = fault_injection::build_client(&stage, move |request| {
        let path = request.uri().path();
        let cluster = (0..CLUSTERS).find(|n| path.contains(&cluster_name(*n)));
        let Some(cluster) = cluster.filter(|_| is_write(request)) else {
            return FaultAction::Forward;
        };
        let mut writes = writes.lock().unwrap();
        let count = writes.entry(cluster_name(cluster)).or_default();
        *count += 1;
        if *count != cluster + 1 {
            return FaultAction::Forward;
        }
        counted.fetch_add(1, Ordering::Relaxed);
        match cluster % 5 {
            0 => FaultAction::RespondStatus(500),
            1 => FaultAction::RespondStatus(409),
            2 => FaultAction::RespondStatus(429),
            3 => FaultAction::DropResponse,
            _ => FaultAction::DropRequest,
        }
    })
    .await;
    let controller = stage.start_controller_via(client, |_| {});
    for n in 0..CLUSTERS {
        stage
            .create_etcd(&cluster_name(n), json!({ "replicas": 1 }))
            .await;
    }
    for n in 0..CLUSTERS {
        stage.wait_settled(&cluster_name(n)).await;
    }
    let failed = failed.load(Ordering::Relaxed);
    // Ten objects and the finalizer; the number of status writes depends on how changes are batched.
    assert!(failed >= 10, "only {failed} writes failed");
    let each = CLUSTERS as usize;
    let services = 2 * each;
    assert_eq!(
        count_parts(&stage).await,
        [each, services, each, each, each, each, each]
    );
    drop(kubelet);
    controller.stop().await;
}

/// Fails the first, third, fifth and every seventh read of each path, lists and watches apart.
#[derive(Default)]
struct ReadFaults(Mutex<(HashMap<String, u32>, BTreeMap<u16, u32>)>);

impl ReadFaults {
    fn next_fault(&self, request: &Request<Body>) -> FaultAction {
        const CODES: [u16; 3] = [500, 429, 410];
        let mut observed = self.0.lock().unwrap();
        let (reads, failed) = &mut *observed;
        let is_watch = request.uri().query().unwrap_or_default().contains("watch=");
        let what = format!("{} {is_watch}", request.uri().path());
        let addresses = reads.len();
        let read = reads.entry(what).or_default();
        *read += 1;
        if !matches!(*read, 1 | 3 | 5) && *read % 7 != 0 {
            return FaultAction::Forward;
        }
        let at = addresses + usize::try_from(*read).unwrap();
        let code = CODES[at % CODES.len()];
        *failed.entry(code).or_default() += 1;
        FaultAction::RespondStatus(code)
    }
}

#[tokio::test]
async fn occasional_read_failures_only_delay() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let unread = Arc::new(ReadFaults::default());
    let reads = Arc::clone(&unread);
    let client = fault_injection::build_client(&stage, move |request| {
        if is_write(request) {
            return FaultAction::Forward;
        }
        reads.next_fault(request)
    })
    .await;
    let controller = stage.start_controller_via(client, |_| {});
    stage.create_etcd("main", json!({ "replicas": 3 })).await;
    stage.wait_settled("main").await;
    let whole = count_parts(&stage).await;
    assert_eq!((whole[0], whole[3]), (1, 3));
    for replicas in [0, 3] {
        let patch = json!({ "spec": { "replicas": replicas } });
        stage.patch_etcd("main", patch).await;
        stage.wait_for_replicas("main", replicas).await;
        stage.wait_settled("main").await;
    }
    stage.wait_until_idle(&controller).await;
    assert_eq!(count_parts(&stage).await, whole);
    let failed = unread.0.lock().unwrap().1.clone();
    assert!(
        failed.len() == 3 && failed.values().all(|count| *count > 5),
        "too few reads failed: {failed:?}"
    );
    drop(kubelet);
    controller.stop().await;
}

fn cluster_name(n: u32) -> String {
    format!("c{n:02}x")
}

#[tokio::test]
async fn cluster_converges_despite_controller_kills_and_concurrent_writes() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    stage.create_etcd("main", json!({ "replicas": 3 })).await;
    let sets = stage.api::<StatefulSet>();
    let rival = tokio::spawn(async move {
        // A write of the controller that is based on an older resource version is rejected.
        for number in 0_u64.. {
            let patch = json!({ "metadata": { "annotations": { "rival": number.to_string() } } });
            sets.patch("main", &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .ok();
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    });
    for round in 1..12_u64 {
        let controller = stage.start_controller().await;
        tokio::time::sleep(Duration::from_millis(130 * round % 900)).await;
        controller.kill();
    }
    rival.abort();
    let controller = stage.start_controller().await;
    stage.wait_settled("main").await;
    assert_eq!(stage.count_objects::<StatefulSet>().await, 1);
    assert_eq!(stage.count_objects::<Lease>().await, 3);
    drop(kubelet);
    controller.stop().await;
}
