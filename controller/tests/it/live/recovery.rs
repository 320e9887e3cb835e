//! Recovery of lost data, with the controller killed between any two steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::ListParams;
use mainstay_controller::metrics::ControllerMetrics;
use mainstay_crds::etcd::RecoveryPhase;
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd};
use mainstay_ids::ClusterId;
use mainstay_testkit::etcd::{EtcdOptions, EtcdRelease, EtcdServer as Server, free_url};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::cluster::ProxiedCluster;
use super::events::wait_for_event;
use super::fake_kubelet::{FakeKubelet, JobResult};
use super::fault_injection::{self, FaultAction, is_write};
use super::test_env::TestEnv;

/// Address of the restored member.
pub(super) const RESTORED_ADDRESS: &str = "127.0.0.50";

/// Output of init about a member.
pub(super) fn init_verdict(member: &str, decision: &str, cause: &str) -> Value {
    let report = json!({
        "version": 1, "member": member, "decision": decision, "cause": cause,
        "data": {"state": "missing"}, "cluster": {"state": "unreachable"},
        "backup": {"state": "present", "newestRevision": 10},
    });
    json!({ "verdict": "restore-required", "reason": "data directory is missing", "init": report })
}

pub(super) fn store_spec() -> Value {
    json!({ "provider": "aws", "container": "backups", "prefix": "shoot/main", "secretRef": { "name": "store" } })
}

/// A restored member: a real single-member etcd behind a proxy on [`RESTORED_ADDRESS`].
pub(super) struct RestoredServer {
    server: Server,
    pub(super) port: u16,
    proxy: JoinHandle<()>,
}

impl RestoredServer {
    pub(super) async fn start(name: &str) -> Self {
        let server = Server::start(
            EtcdRelease::NEWEST,
            EtcdOptions::new().name(name).peer_url(free_url()),
        )
        .await;
        let port = free_url()
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .expect("a port");
        let proxy = start_proxy(&server, port).await;
        Self {
            server,
            port,
            proxy,
        }
    }

    pub(super) async fn start_on_port(name: &str, port: u16) -> Self {
        let server = Server::start(
            EtcdRelease::NEWEST,
            EtcdOptions::new().name(name).peer_url(free_url()),
        )
        .await;
        let proxy = start_proxy(&server, port).await;
        Self {
            server,
            port,
            proxy,
        }
    }

    /// Number of its learners.
    pub(super) async fn count_learners(&self) -> usize {
        let mut client = self.server.client().await;
        let list = client.member_list().await.expect("a list");
        let members = list.members().iter();
        members.filter(|member| member.is_learner()).count()
    }

    /// Output of the restorer for this member.
    pub(super) async fn restore_message(&self) -> Value {
        let mut client = self.server.client().await;
        let status = client.status().await.expect("a status");
        let header = status.header().expect("a header");
        json!({
            "verdict": "restored", "revision": 1, "startRevision": header.revision(),
            "clusterId": ClusterId(header.cluster_id()).to_string(), "base": "Full-00000000-00000010-1",
        })
    }
}

impl Drop for RestoredServer {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

async fn start_proxy(server: &Server, port: u16) -> JoinHandle<()> {
    let to: std::net::SocketAddr = server
        .client_url()
        .trim_start_matches("http://")
        .parse()
        .expect("an address");
    let listener = TcpListener::bind((RESTORED_ADDRESS, port))
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

/// Kills the controller repeatedly until dropped: shortly after one to four writes, or after three reconciles that wrote less.
/// Counting instead of a fixed time lets every controller make progress on a slow machine.
pub(super) struct ControllerKiller(JoinHandle<()>);

impl ControllerKiller {
    pub(super) fn start(stage: &Arc<TestEnv>) -> Self {
        let stage = Arc::clone(stage);
        Self(tokio::spawn(async move {
            for round in 0_u64.. {
                let writes = Arc::new(AtomicU64::new(0));
                let counted = Arc::clone(&writes);
                let client = fault_injection::build_client(&stage, move |request| {
                    counted.fetch_add(u64::from(is_write(request)), Ordering::Relaxed);
                    FaultAction::Forward
                });
                let controller = stage.start_controller_via(client.await, |_| {});
                while writes.load(Ordering::Relaxed) <= round % 4
                    && count_reconciles(&controller.metrics) < 3
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                tokio::time::sleep(Duration::from_millis(370 * round % 1_100)).await;
                controller.kill();
            }
        }))
    }
}

impl Drop for ControllerKiller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn recovery_phase(etcd: &Etcd) -> Option<RecoveryPhase> {
    let status = etcd.status.as_ref()?.mainstay.as_ref()?;
    Some(status.recovery.as_ref()?.phase.clone())
}

pub(super) fn recovery_condition(etcd: &Etcd) -> Option<Condition> {
    let conditions = etcd.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|one| one.type_ == ConditionType::RecoveryRequired);
    found.cloned()
}

pub(super) fn job_args(job: &Job) -> Vec<String> {
    let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    pod.containers[0].args.clone().unwrap()
}

/// Whether a recovery has succeeded, its lock is released and its Jobs are deleted.
pub(super) async fn is_recovery_over(stage: &TestEnv) -> bool {
    let etcd = stage.get_etcd("main").await;
    let is_reported = recovery_phase(&etcd) == Some(RecoveryPhase::Succeeded)
        && recovery_condition(&etcd).is_some_and(|one| one.status == ConditionStatus::False);
    let document = stage.api::<ConfigMap>().get_opt("main-coordination").await;
    let entries = document.expect("get the document").and_then(|map| map.data);
    let lock = entries.as_ref().and_then(|entries| entries.get("lock"));
    let is_released = lock.is_some_and(|lock| lock.contains("released"));
    is_reported && is_released && stage.count_objects::<Job>().await == 0
}

/// Waits until a recovery has succeeded and is cleaned up.
pub(super) async fn wait_recovery_over(stage: &TestEnv) {
    stage
        .wait_for("main", "recovered", |etcd: &Etcd| {
            recovery_phase(etcd) == Some(RecoveryPhase::Succeeded)
        })
        .await;
    stage
        .wait_until("the recovery is cleaned up", async || {
            is_recovery_over(stage).await
        })
        .await;
    let document = stage.api::<ConfigMap>().get("main-coordination").await;
    let document = document.expect("a document");
    assert_eq!(document.labels()["app.kubernetes.io/part-of"], "main");
}

/// Sets the verdict that the only member has no data while a backup exists.
pub(super) fn lose_single_member(kubelet: &FakeKubelet) {
    let lost = init_verdict("main-0", "restoreRequired", "backupExists");
    kubelet.configure(|behavior| {
        behavior.init_verdicts.insert("main-0".to_owned(), lost);
    });
}

/// Spec of a cluster of one with a backup, whose restored member is this one.
pub(super) fn single_member_spec(restored: &RestoredServer) -> Value {
    json!({ "replicas": 1, "etcd": { "clientPort": restored.port }, "backup": { "store": store_spec() } })
}

/// Lets the Job of the only member succeed and moves the pod to the address of the restored member.
pub(super) fn complete_single_restore(kubelet: &FakeKubelet, output: Value) {
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-restore-0".to_owned(), JobResult::Succeeded(output));
        behavior.init_verdicts.clear();
        behavior
            .pod_addresses
            .insert("main-0".to_owned(), RESTORED_ADDRESS.to_owned());
    });
}

#[tokio::test]
async fn single_member_is_restored_while_the_controller_is_killed() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let restored = RestoredServer::start("main-0").await;
    lose_single_member(&kubelet);
    let reaper = ControllerKiller::start(&stage);
    stage
        .create_etcd("main", single_member_spec(&restored))
        .await;
    let job = stage
        .wait_for("main-restore-0", "there", |_: &Job| true)
        .await;
    assert!(!has_member_pods(&stage).await, "a pod may use the volume");
    stage.wait_for_replicas("main", 0).await;
    let flags = job_args(&job);
    assert!(
        flags.iter().any(|flag| flag == "--mark-compacted"),
        "{flags:?}"
    );
    // The first attempt fails, the second succeeds.
    let output = json!({ "verdict": "store-unavailable", "reason": "store unreachable" });
    kubelet.configure(|behavior| {
        behavior
            .job_results
            .insert("main-restore-0".to_owned(), JobResult::Failed(output));
    });
    let reported = stage
        .wait_for("main", "reported as failed", |etcd: &Etcd| {
            recovery_condition(etcd).is_some_and(|one| one.reason == "RestoreFailed")
        })
        .await;
    let reported = recovery_condition(&reported).unwrap().message;
    assert!(reported.contains("store unreachable"), "{reported}");
    complete_single_restore(&kubelet, restored.restore_message().await);
    stage.wait_for_replicas("main", 1).await;
    wait_recovery_over(&stage).await;
    drop(reaper);
    let controller = stage.start_controller().await;
    stage.wait_settled("main").await;
    assert_eq!(stage.count_objects::<StatefulSet>().await, 1);
    controller.stop().await;
}

#[tokio::test]
async fn lost_quorum_is_recovered_from_the_survivor_after_approval() {
    let stage = Arc::new(TestEnv::start().await);
    let kubelet = FakeKubelet::start(&stage);
    let mut proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    let port = create_three_members(&stage, &proxied, "Approve").await;
    lose_two_members(&mut proxied, &kubelet);
    let waiting = stage
        .wait_for("main", "waiting for approval", |etcd: &Etcd| {
            recovery_phase(etcd) == Some(RecoveryPhase::AwaitingApproval)
        })
        .await;
    assert_eq!(
        recovery_condition(&waiting).unwrap().reason,
        "ApprovalRequired"
    );
    wait_for_event(&stage, "Warning", "RecoveryRequired is True").await;
    stage.wait_for_replicas("main", 3).await;
    assert_eq!(
        stage.count_objects::<Job>().await,
        0,
        "nothing is restored without approval"
    );
    controller.stop().await;
    let reaper = ControllerKiller::start(&stage);
    let status = waiting.status.unwrap().mainstay.unwrap().recovery.unwrap();
    let annotation = "etcd-mainstay.io/approve-recovery";
    stage
        .patch_etcd(
            "main",
            json!({ "metadata": { "annotations": { annotation: status.id } } }),
        )
        .await;
    let job = stage
        .wait_for("main-restore-2", "there", |_: &Job| true)
        .await;
    let flags = job_args(&job);
    assert!(
        flags
            .iter()
            .any(|flag| flag.starts_with("--prefer-data-dir=")),
        "{flags:?}"
    );
    assert!(!has_member_pods(&stage).await, "a pod may use the volume");
    drop(proxied);
    let restored = RestoredServer::start_on_port("main-2", port).await;
    let output = restored.restore_message().await;
    complete_quorum_restore(&kubelet, output);
    stage.wait_for_replicas("main", 3).await;
    wait_recovery_over(&stage).await;
    stage
        .wait_until("the first other member is a learner", async || {
            restored.count_learners().await == 1
        })
        .await;
    drop(reaper);
}

/// Creates a cluster of three with a backup and this recovery mode and waits until it is settled. Returns its client port.
pub(super) async fn create_three_members(
    stage: &TestEnv,
    proxied: &ProxiedCluster,
    mode: &str,
) -> u16 {
    let mut spec = proxied.spec(3);
    spec["backup"] = json!({ "store": store_spec() });
    spec["mainstay"] = json!({ "recovery": { "mode": mode } });
    let port = u16::try_from(spec["etcd"]["clientPort"].as_u64().unwrap()).unwrap();
    stage.create_etcd("main", spec).await;
    stage.wait_settled("main").await;
    port
}

/// Two of three members lose their data.
pub(super) fn lose_two_members(proxied: &mut ProxiedCluster, kubelet: &FakeKubelet) {
    for ordinal in [0, 1] {
        proxied.cluster.members[ordinal].kill();
        let name = format!("main-{ordinal}");
        let lost = init_verdict(&name, "wait", "dataLost");
        kubelet.configure(|behavior| {
            behavior.init_verdicts.insert(name, lost);
        });
    }
}

/// Lets the Jobs succeed. The third member becomes a single-member cluster, and the others wait to be added.
pub(super) fn complete_quorum_restore(kubelet: &FakeKubelet, output: Value) {
    kubelet.configure(|behavior| {
        let aside = || JobResult::Succeeded(json!({ "verdict": "ready" }));
        let ends = [JobResult::Succeeded(output), aside(), aside()];
        for (ordinal, ends) in [2, 0, 1].into_iter().zip(ends) {
            behavior
                .job_results
                .insert(format!("main-restore-{ordinal}"), ends);
        }
        behavior.pod_addresses.clear();
        behavior
            .pod_addresses
            .insert("main-2".to_owned(), RESTORED_ADDRESS.to_owned());
        for waiting in ["main-0", "main-1"] {
            let lost = init_verdict(waiting, "wait", "notAdded");
            behavior.init_verdicts.insert(waiting.to_owned(), lost);
        }
    });
}

/// Number of reconciles so far.
pub(super) fn count_reconciles(metrics: &ControllerMetrics) -> u64 {
    let text = metrics.render().expect("metrics");
    let lines = text
        .lines()
        .filter(|line| line.starts_with("mainstay_controller_reconciles_total"));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    counts.sum()
}

/// Whether a pod of a member exists.
pub(super) async fn has_member_pods(stage: &TestEnv) -> bool {
    let members = ListParams::default().labels("app.kubernetes.io/component=etcd-statefulset");
    let pods = stage.api::<Pod>().list(&members).await.expect("a list");
    !pods.items.is_empty()
}

#[tokio::test]
async fn unreachable_store_or_wrong_volume_restores_nothing() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let controller = stage.start_controller().await;
    for (decision, cause) in [("wait", "storeUnreachable"), ("refuse", "wrongVolume")] {
        let refused = init_verdict("main-0", decision, cause);
        kubelet.configure(|behavior| {
            behavior.init_verdicts.insert("main-0".to_owned(), refused);
        });
        let spec = json!({ "replicas": 1, "backup": { "store": store_spec() } });
        if stage.api::<Etcd>().get_opt("main").await.unwrap().is_none() {
            stage.create_etcd("main", spec).await;
        }
        stage
            .wait_for("main-0", "refused", |pod: &Pod| {
                let text = serde_json::to_string(&pod.status).unwrap();
                text.contains(cause)
            })
            .await;
        let before = count_reconciles(&controller.metrics);
        stage
            .wait_until("it is reconciled several times", async || {
                let touch = json!({ "metadata": { "annotations": { "touch": count_reconciles(&controller.metrics).to_string() } } });
                stage.patch_etcd("main", touch).await;
                count_reconciles(&controller.metrics) > before + 3
            })
            .await;
        assert_eq!(stage.count_objects::<Job>().await, 0);
        stage.wait_for_replicas("main", 1).await;
        assert!(recovery_condition(&stage.get_etcd("main").await).is_none());
        kubelet.configure(|behavior| {
            behavior.init_verdicts.clear();
        });
        stage
            .wait_for("main-0", "ready", |pod: &Pod| {
                let status = pod.status.as_ref();
                let conditions = status.and_then(|status| status.conditions.as_ref());
                let mut conditions = conditions.into_iter().flatten();
                conditions.any(|one| one.type_ == "Ready" && one.status == "True")
            })
            .await;
    }
    controller.stop().await;
}
