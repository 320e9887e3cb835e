//! A controller that is killed, contradicted and answered with errors still gets there, and never twice.

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

use super::cluster::settled_three;
use super::kubelet::Kubelet;
use super::stage::Stage;
use super::wire::{self, Fate, Kills, a_few_writes_at_a_time, is_write};

/// How many objects of each kind a cluster is made of.
async fn parts(stage: &Stage) -> [usize; 7] {
    [
        stage.count::<StatefulSet>().await,
        stage.count::<Service>().await,
        stage.count::<ConfigMap>().await,
        stage.count::<Lease>().await,
        stage.count::<Role>().await,
        stage.count::<RoleBinding>().await,
        stage.count::<ServiceAccount>().await,
    ]
}

async fn is_gone(stage: &Stage) -> bool {
    stage.api::<Etcd>().get_opt("main").await.unwrap().is_none()
}

#[tokio::test]
async fn writes_and_answers_that_are_lost_change_nothing_about_the_outcome() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let (writes, lost) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&lost);
    let client = wire::client(&stage, move |request| {
        if !is_write(request) {
            return Fate::Answered;
        }
        let number = writes.fetch_add(1, Ordering::Relaxed);
        let fate = match (number % 3, number % 5) {
            (2, _) => Fate::Lost,
            (_, 4) => Fate::Unanswered,
            _ => return Fate::Answered,
        };
        counted.fetch_add(1, Ordering::Relaxed);
        fate
    })
    .await;
    let controller = stage.control_through(client, |_| {});
    stage.create("main", json!({ "replicas": 3 })).await;
    stage.settled("main").await;
    stage
        .change("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    stage.set_of("main", 0).await;
    stage.settled("main").await;
    assert!(
        lost.load(Ordering::Relaxed) > 5,
        "nothing was lost: the test proves nothing"
    );
    assert_eq!(stage.count::<Lease>().await, 3);
    let etcds = stage.api::<Etcd>();
    etcds
        .delete("main", &DeleteParams::default())
        .await
        .unwrap();
    stage
        .eventually("the Etcd is gone", async || is_gone(&stage).await)
        .await;
    assert_eq!(stage.count::<Lease>().await, 0);
    drop(kubelet);
    controller.stop().await;
}

/// Whether everything is done for a cluster of so many members.
pub(super) async fn rests(stage: &Stage, replicas: i32) -> bool {
    let etcd = stage.etcd("main").await;
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
async fn controllers_that_are_killed_get_there_together() {
    live_and_go(Kills::Seldom).await;
}

pub(super) async fn live_and_go(kills: Kills) {
    let stage = Stage::with(kills).await;
    let kubelet = Kubelet::play(&stage);
    stage.create("main", json!({ "replicas": 1 })).await;
    let rests = async |replicas| rests(&stage, replicas).await;
    let lives = a_few_writes_at_a_time(&stage, "it is made", async || rests(1).await).await;
    kills.assert_proven(lives, 5);
    let whole = parts(&stage).await;
    assert_eq!(whole[0], 1);
    assert_eq!(whole[3], 1);

    stage
        .change("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    a_few_writes_at_a_time(&stage, "it sleeps", async || rests(0).await).await;
    stage
        .change("main", json!({ "spec": { "replicas": 1 } }))
        .await;
    a_few_writes_at_a_time(&stage, "it is awake", async || rests(1).await).await;
    assert_eq!(
        parts(&stage).await,
        whole,
        "something is there twice, or gone"
    );

    let etcds = stage.api::<Etcd>();
    etcds
        .delete("main", &DeleteParams::default())
        .await
        .unwrap();
    a_few_writes_at_a_time(&stage, "it is gone", async || is_gone(&stage).await).await;
    assert_eq!(parts(&stage).await, [0; 7]);
    assert_eq!(stage.count::<PersistentVolumeClaim>().await, 1);
    drop(kubelet);
}

/// The identities of the pods there are.
pub(super) async fn pods(stage: &Stage) -> BTreeSet<String> {
    let members = ListParams::default().labels("app.kubernetes.io/component=etcd-statefulset");
    let list = stage.api::<Pod>().list(&members).await.unwrap();
    list.iter().filter_map(ResourceExt::uid).collect()
}

#[tokio::test]
async fn so_do_they_when_members_are_replaced_and_when_they_leave() {
    replace_and_shrink(Kills::Seldom).await;
}

pub(super) async fn replace_and_shrink(kills: Kills) {
    let stage = Stage::with(kills).await;
    let (kubelet, behind, controller) = settled_three(&stage).await;
    controller.kill();

    let old = pods(&stage).await;
    let rolled = json!({ "spec": { "annotations": { "rolled": "once" } } });
    stage.change("main", rolled).await;
    let is_rolled = async || {
        let new = pods(&stage).await;
        rests(&stage, 3).await && new.len() == 3 && new.is_disjoint(&old)
    };
    let lives = a_few_writes_at_a_time(&stage, "all were replaced", is_rolled).await;
    kills.assert_proven(lives, 3);

    let urls = behind.spec(1)["etcd"]["additionalAdvertisePeerURLs"].take();
    let fewer = json!({ "replicas": 1, "etcd": { "additionalAdvertisePeerURLs": urls } });
    stage.change("main", json!({ "spec": fewer })).await;
    let is_alone = async || rests(&stage, 1).await;
    a_few_writes_at_a_time(&stage, "two have left", is_alone).await;
    assert_eq!(behind.names().await.0, ["main-0"]);
    assert_eq!(stage.count::<Lease>().await, 1);
    drop(kubelet);
}

#[tokio::test]
async fn an_error_at_any_one_write_delays_and_breaks_nothing() {
    const CLUSTERS: u32 = 24;
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let writes = Mutex::new(HashMap::<String, u32>::new());
    let failed = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&failed);
    // The n-th write for the n-th cluster goes wrong, each in its way.
    let client = wire::client(&stage, move |request| {
        let path = request.uri().path();
        let cluster = (0..CLUSTERS).find(|n| path.contains(&name(*n)));
        let Some(cluster) = cluster.filter(|_| is_write(request)) else {
            return Fate::Answered;
        };
        let mut writes = writes.lock().unwrap();
        let count = writes.entry(name(cluster)).or_default();
        *count += 1;
        if *count != cluster + 1 {
            return Fate::Answered;
        }
        counted.fetch_add(1, Ordering::Relaxed);
        match cluster % 5 {
            0 => Fate::Refused(500),
            1 => Fate::Refused(409),
            2 => Fate::Refused(429),
            3 => Fate::Unanswered,
            _ => Fate::Lost,
        }
    })
    .await;
    let controller = stage.control_through(client, |_| {});
    for n in 0..CLUSTERS {
        stage.create(&name(n), json!({ "replicas": 1 })).await;
    }
    for n in 0..CLUSTERS {
        stage.settled(&name(n)).await;
    }
    let failed = failed.load(Ordering::Relaxed);
    // Ten objects and the finalizer; how often the status is written depends on what is told together.
    assert!(failed >= 10, "only {failed} writes went wrong");
    let each = CLUSTERS as usize;
    let services = 2 * each;
    assert_eq!(
        parts(&stage).await,
        [each, services, each, each, each, each, each]
    );
    drop(kubelet);
    controller.stop().await;
}

/// What goes wrong with reads: of each address the first, third and fifth answer, and every seventh after that.
#[derive(Default)]
struct Unread(Mutex<(HashMap<String, u32>, BTreeMap<u16, u32>)>);

impl Unread {
    fn fate(&self, request: &Request<Body>) -> Fate {
        const CODES: [u16; 3] = [500, 429, 410];
        let mut seen = self.0.lock().unwrap();
        let (reads, failed) = &mut *seen;
        let is_watch = request.uri().query().unwrap_or_default().contains("watch=");
        let what = format!("{} {is_watch}", request.uri().path());
        let addresses = reads.len();
        let read = reads.entry(what).or_default();
        *read += 1;
        if !matches!(*read, 1 | 3 | 5) && *read % 7 != 0 {
            return Fate::Answered;
        }
        let at = addresses + usize::try_from(*read).unwrap();
        let code = CODES[at % CODES.len()];
        *failed.entry(code).or_default() += 1;
        Fate::Refused(code)
    }
}

#[tokio::test]
async fn reads_that_fail_now_and_then_delay_and_break_nothing() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let unread = Arc::new(Unread::default());
    let reads = Arc::clone(&unread);
    let client = wire::client(&stage, move |request| {
        if is_write(request) {
            return Fate::Answered;
        }
        reads.fate(request)
    })
    .await;
    let controller = stage.control_through(client, |_| {});
    stage.create("main", json!({ "replicas": 3 })).await;
    stage.settled("main").await;
    let whole = parts(&stage).await;
    assert_eq!((whole[0], whole[3]), (1, 3));
    for replicas in [0, 3] {
        let patch = json!({ "spec": { "replicas": replicas } });
        stage.change("main", patch).await;
        stage.set_of("main", replicas).await;
        stage.settled("main").await;
    }
    stage.at_rest(&controller).await;
    assert_eq!(parts(&stage).await, whole);
    let failed = unread.0.lock().unwrap().1.clone();
    assert!(
        failed.len() == 3 && failed.values().all(|count| *count > 5),
        "too few reads went wrong: {failed:?}"
    );
    drop(kubelet);
    controller.stop().await;
}

fn name(n: u32) -> String {
    format!("c{n:02}x")
}

#[tokio::test]
async fn a_controller_that_is_killed_again_and_again_gets_there_while_others_write_too() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    stage.create("main", json!({ "replicas": 3 })).await;
    let sets = stage.api::<StatefulSet>();
    let rival = tokio::spawn(async move {
        // Every write of ours that is based on an older version is refused.
        for number in 0_u64.. {
            let patch = json!({ "metadata": { "annotations": { "rival": number.to_string() } } });
            sets.patch("main", &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .ok();
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    });
    for round in 1..12_u64 {
        let controller = stage.control().await;
        tokio::time::sleep(Duration::from_millis(130 * round % 900)).await;
        controller.kill();
    }
    rival.abort();
    let controller = stage.control().await;
    stage.settled("main").await;
    assert_eq!(stage.count::<StatefulSet>().await, 1);
    assert_eq!(stage.count::<Lease>().await, 3);
    drop(kubelet);
    controller.stop().await;
}
