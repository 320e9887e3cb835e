//! Lost data comes back, through every step, with the controller killed between any two of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::ListParams;
use mainstay_controller::metrics::Metrics;
use mainstay_crds::etcd::RecoveryPhase;
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd};
use mainstay_ids::ClusterId;
use mainstay_testkit::etcd::{Etcd as Server, EtcdOptions, EtcdVersion, free_url};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::cluster::Behind;
use super::events::told;
use super::kubelet::{Ends, Kubelet};
use super::stage::Stage;
use super::wire::{self, Fate, is_write};

/// Where the restored member is.
pub(super) const ADDRESS: &str = "127.0.0.50";

/// What init says about a member.
pub(super) fn verdict(member: &str, decision: &str, cause: &str) -> Value {
    let report = json!({
        "version": 1, "member": member, "decision": decision, "cause": cause,
        "data": {"state": "missing"}, "cluster": {"state": "unreachable"},
        "backup": {"state": "present", "newestRevision": 10},
    });
    json!({ "verdict": "restore-required", "reason": "there is no data", "init": report })
}

pub(super) fn store() -> Value {
    json!({ "provider": "aws", "container": "backups", "prefix": "shoot/main", "secretRef": { "name": "store" } })
}

/// A restored member: a real etcd of one, behind the address of its pod.
pub(super) struct Restored {
    server: Server,
    pub(super) port: u16,
    wire: JoinHandle<()>,
}

impl Restored {
    pub(super) async fn start(name: &str) -> Self {
        let server = Server::start(
            EtcdVersion::V3_5New,
            EtcdOptions::new().name(name).peer_url(free_url()),
        )
        .await;
        let port = free_url()
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .expect("a port");
        let wire = wire(&server, port).await;
        Self { server, port, wire }
    }

    pub(super) async fn behind(name: &str, port: u16) -> Self {
        let server = Server::start(
            EtcdVersion::V3_5New,
            EtcdOptions::new().name(name).peer_url(free_url()),
        )
        .await;
        let wire = wire(&server, port).await;
        Self { server, port, wire }
    }

    /// How many members were added to it and do not vote yet.
    pub(super) async fn learners(&self) -> usize {
        let mut client = self.server.client().await;
        let list = client.member_list().await.expect("a list");
        let members = list.members().iter();
        members.filter(|member| member.is_learner()).count()
    }

    /// What the restorer says that made it.
    pub(super) async fn words(&self) -> Value {
        let mut client = self.server.client().await;
        let status = client.status().await.expect("a status");
        let header = status.header().expect("a header");
        json!({
            "verdict": "restored", "revision": 1, "startRevision": header.revision(),
            "clusterId": ClusterId(header.cluster_id()).to_string(), "base": "Full-00000000-00000010-1",
        })
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        self.wire.abort();
    }
}

async fn wire(server: &Server, port: u16) -> JoinHandle<()> {
    let to: std::net::SocketAddr = server
        .client_url()
        .trim_start_matches("http://")
        .parse()
        .expect("an address");
    let listener = TcpListener::bind((ADDRESS, port))
        .await
        .expect("an address");
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut to) = TcpStream::connect(to).await {
                    tokio::io::copy_bidirectional(&mut from, &mut to).await.ok();
                }
            });
        }
    })
}

/// Kills the controller again and again until dropped: a moment after a few writes, now one, now more, or after a few reconciles
/// that wrote less. So each gets further, however slow the machine is.
pub(super) struct Reaper(JoinHandle<()>);

impl Reaper {
    pub(super) fn start(stage: &Arc<Stage>) -> Self {
        let stage = Arc::clone(stage);
        Self(tokio::spawn(async move {
            for round in 0_u64.. {
                let writes = Arc::new(AtomicU64::new(0));
                let counted = Arc::clone(&writes);
                let client = wire::client(&stage, move |request| {
                    counted.fetch_add(u64::from(is_write(request)), Ordering::Relaxed);
                    Fate::Answered
                });
                let controller = stage.control_through(client.await, |_| {});
                while writes.load(Ordering::Relaxed) <= round % 4 && passes(&controller.metrics) < 3
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                tokio::time::sleep(Duration::from_millis(370 * round % 1_100)).await;
                controller.kill();
            }
        }))
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn phase(etcd: &Etcd) -> Option<RecoveryPhase> {
    let status = etcd.status.as_ref()?.mainstay.as_ref()?;
    Some(status.recovery.as_ref()?.phase.clone())
}

pub(super) fn condition(etcd: &Etcd) -> Option<Condition> {
    let conditions = etcd.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|one| one.type_ == ConditionType::RecoveryRequired);
    found.cloned()
}

pub(super) fn args(job: &Job) -> Vec<String> {
    let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    pod.containers[0].args.clone().unwrap()
}

/// Whether a recovery is over and nothing of it is left.
pub(super) async fn is_over(stage: &Stage) -> bool {
    let etcd = stage.etcd("main").await;
    let is_told = phase(&etcd) == Some(RecoveryPhase::Succeeded)
        && condition(&etcd).is_some_and(|one| one.status == ConditionStatus::False);
    let document = stage.api::<ConfigMap>().get_opt("main-coordination").await;
    let entries = document
        .expect("ask for the document")
        .and_then(|map| map.data);
    let lock = entries.as_ref().and_then(|entries| entries.get("lock"));
    let is_released = lock.is_some_and(|lock| lock.contains("released"));
    is_told && is_released && stage.count::<Job>().await == 0
}

/// Waits until a recovery is over and nothing of it is left.
pub(super) async fn over(stage: &Stage) {
    stage
        .until("main", "recovered", |etcd: &Etcd| {
            phase(etcd) == Some(RecoveryPhase::Succeeded)
        })
        .await;
    stage
        .eventually("nothing of the recovery is left", async || {
            is_over(stage).await
        })
        .await;
    let document = stage.api::<ConfigMap>().get("main-coordination").await;
    let document = document.expect("a document");
    assert_eq!(document.labels()["app.kubernetes.io/part-of"], "main");
}

/// The only member has no data, and there is a backup.
pub(super) fn lose_the_only(kubelet: &Kubelet) {
    let lost = verdict("main-0", "restoreRequired", "backupExists");
    kubelet.order(|orders| {
        orders.verdicts.insert("main-0".to_owned(), lost);
    });
}

/// A cluster of one with a backup, whose member is this one once it is restored.
pub(super) fn of_one(restored: &Restored) -> Value {
    json!({ "replicas": 1, "etcd": { "clientPort": restored.port }, "backup": { "store": store() } })
}

/// The Job of the only member ends well, and the member is found where it is.
pub(super) fn come_back_alone(kubelet: &Kubelet, words: Value) {
    kubelet.order(|orders| {
        orders
            .jobs
            .insert("main-restore-0".to_owned(), Ends::Well(words));
        orders.verdicts.clear();
        orders
            .addresses
            .insert("main-0".to_owned(), ADDRESS.to_owned());
    });
}

#[tokio::test]
async fn a_single_member_is_restored_while_the_controller_is_killed_again_and_again() {
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let restored = Restored::start("main-0").await;
    lose_the_only(&kubelet);
    let reaper = Reaper::start(&stage);
    stage.create("main", of_one(&restored)).await;
    let job = stage.until("main-restore-0", "there", |_: &Job| true).await;
    assert!(!members_run(&stage).await, "a pod may use the volume");
    stage.set_of("main", 0).await;
    let flags = args(&job);
    assert!(
        flags.iter().any(|flag| flag == "--mark-compacted"),
        "{flags:?}"
    );
    // The first attempt fails, the second does not.
    let words = json!({ "verdict": "store-unavailable", "reason": "no answer from the store" });
    kubelet.order(|orders| {
        orders
            .jobs
            .insert("main-restore-0".to_owned(), Ends::Badly(words));
    });
    let told = stage
        .until("main", "told of the failure", |etcd: &Etcd| {
            condition(etcd).is_some_and(|one| one.reason == "RestoreFailed")
        })
        .await;
    let told = condition(&told).unwrap().message;
    assert!(told.contains("no answer from the store"), "{told}");
    come_back_alone(&kubelet, restored.words().await);
    stage.set_of("main", 1).await;
    over(&stage).await;
    drop(reaper);
    let controller = stage.control().await;
    stage.settled("main").await;
    assert_eq!(stage.count::<StatefulSet>().await, 1);
    controller.stop().await;
}

#[tokio::test]
async fn a_lost_quorum_is_recovered_from_the_survivor_once_a_person_approves() {
    let stage = Arc::new(Stage::set().await);
    let kubelet = Kubelet::play(&stage);
    let mut behind = Behind::start("main", 3, 3).await;
    behind.settle_in(&kubelet).await;
    let controller = stage.control().await;
    let port = of_three(&stage, &behind, "Approve").await;
    lose_two(&mut behind, &kubelet);
    let asks = stage
        .until("main", "waiting for approval", |etcd: &Etcd| {
            phase(etcd) == Some(RecoveryPhase::AwaitingApproval)
        })
        .await;
    assert_eq!(condition(&asks).unwrap().reason, "ApprovalRequired");
    told(&stage, "Warning", "RecoveryRequired is True").await;
    stage.set_of("main", 3).await;
    assert_eq!(stage.count::<Job>().await, 0, "nothing is done unasked");
    controller.stop().await;
    let reaper = Reaper::start(&stage);
    let status = asks.status.unwrap().mainstay.unwrap().recovery.unwrap();
    let annotation = "etcd-mainstay.io/approve-recovery";
    stage
        .change(
            "main",
            json!({ "metadata": { "annotations": { annotation: status.id } } }),
        )
        .await;
    let job = stage.until("main-restore-2", "there", |_: &Job| true).await;
    let flags = args(&job);
    assert!(
        flags
            .iter()
            .any(|flag| flag.starts_with("--prefer-data-dir=")),
        "{flags:?}"
    );
    assert!(!members_run(&stage).await, "a pod may use the volume");
    drop(behind);
    let restored = Restored::behind("main-2", port).await;
    let words = restored.words().await;
    come_back(&kubelet, words);
    stage.set_of("main", 3).await;
    over(&stage).await;
    stage
        .eventually("the first of the others is a learner", async || {
            restored.learners().await == 1
        })
        .await;
    drop(reaper);
}

/// A cluster of three with a backup and this mode of recovery, settled; the port its clients use.
pub(super) async fn of_three(stage: &Stage, behind: &Behind, mode: &str) -> u16 {
    let mut spec = behind.spec(3);
    spec["backup"] = json!({ "store": store() });
    spec["mainstay"] = json!({ "recovery": { "mode": mode } });
    let port = u16::try_from(spec["etcd"]["clientPort"].as_u64().unwrap()).unwrap();
    stage.create("main", spec).await;
    stage.settled("main").await;
    port
}

/// Two of three members lose their volumes.
pub(super) fn lose_two(behind: &mut Behind, kubelet: &Kubelet) {
    for ordinal in [0, 1] {
        behind.cluster.members[ordinal].kill();
        let name = format!("main-{ordinal}");
        let lost = verdict(&name, "wait", "dataLost");
        kubelet.order(|orders| {
            orders.verdicts.insert(name, lost);
        });
    }
}

/// The Jobs end well; the third member is a cluster of one, and the others wait to be added.
pub(super) fn come_back(kubelet: &Kubelet, words: Value) {
    kubelet.order(|orders| {
        let aside = || Ends::Well(json!({ "verdict": "ready" }));
        let ends = [Ends::Well(words), aside(), aside()];
        for (ordinal, ends) in [2, 0, 1].into_iter().zip(ends) {
            orders.jobs.insert(format!("main-restore-{ordinal}"), ends);
        }
        orders.addresses.clear();
        orders
            .addresses
            .insert("main-2".to_owned(), ADDRESS.to_owned());
        for waiting in ["main-0", "main-1"] {
            let lost = verdict(waiting, "wait", "notAdded");
            orders.verdicts.insert(waiting.to_owned(), lost);
        }
    });
}

/// Passes so far.
pub(super) fn passes(metrics: &Metrics) -> u64 {
    let text = metrics.render().expect("metrics");
    let lines = text
        .lines()
        .filter(|line| line.starts_with("mainstay_controller_reconciles_total"));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

/// Whether a pod of a member is there.
pub(super) async fn members_run(stage: &Stage) -> bool {
    let members = ListParams::default().labels("app.kubernetes.io/component=etcd-statefulset");
    let pods = stage.api::<Pod>().list(&members).await.expect("a list");
    !pods.items.is_empty()
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_and_a_wrong_volume_restore_nothing() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    let controller = stage.control().await;
    for (decision, cause) in [("wait", "storeUnreachable"), ("refuse", "wrongVolume")] {
        let refused = verdict("main-0", decision, cause);
        kubelet.order(|orders| {
            orders.verdicts.insert("main-0".to_owned(), refused);
        });
        let spec = json!({ "replicas": 1, "backup": { "store": store() } });
        if stage.api::<Etcd>().get_opt("main").await.unwrap().is_none() {
            stage.create("main", spec).await;
        }
        stage
            .until("main-0", "refused", |pod: &Pod| {
                let text = serde_json::to_string(&pod.status).unwrap();
                text.contains(cause)
            })
            .await;
        let before = passes(&controller.metrics);
        stage
            .eventually("it is looked at again and again", async || {
                let look = json!({ "metadata": { "annotations": { "look": passes(&controller.metrics).to_string() } } });
                stage.change("main", look).await;
                passes(&controller.metrics) > before + 3
            })
            .await;
        assert_eq!(stage.count::<Job>().await, 0);
        stage.set_of("main", 1).await;
        assert!(condition(&stage.etcd("main").await).is_none());
        kubelet.order(|orders| {
            orders.verdicts.clear();
        });
        stage
            .until("main-0", "ready", |pod: &Pod| {
                let status = pod.status.as_ref();
                let conditions = status.and_then(|status| status.conditions.as_ref());
                let mut conditions = conditions.into_iter().flatten();
                conditions.any(|one| one.type_ == "Ready" && one.status == "True")
            })
            .await;
    }
    controller.stop().await;
}
