//! Shared test environment: an API server with the CRDs, a controller, and waits on objects.

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use mainstay_controller::args::OperatorArgs;
use mainstay_controller::config::OperatorConfiguration;
use mainstay_controller::http::Readiness;
use mainstay_controller::metrics::ControllerMetrics;
use mainstay_controller::probe::ReconcileProbe;
use mainstay_controller::run::Manager;
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd};
use mainstay_testkit::kube::ApiServer;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::fake_kubelet::KubeletRounds;
use super::fault_injection::KillRate;

/// Deadline of every wait. Kubernetes controllers are slow on a loaded machine.
pub(super) const WAIT_TIMEOUT: Duration = Duration::from_mins(3);
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Installs logging once. `MAINSTAY_TEST_LOG` shows the logs of the controllers.
static LOG_INIT: Once = Once::new();

pub(super) struct TestEnv {
    pub(super) server: ApiServer,
    pub(super) client: Client,
    pub(super) namespace: String,
    /// Rounds of the fake kubelet of this namespace.
    pub(super) rounds: KubeletRounds,
    pub(super) kill_rate: KillRate,
}

/// A controller in this process. Dropping it aborts it.
pub(super) struct RunningController {
    pub(super) metrics: ControllerMetrics,
    pub(super) readiness: Readiness,
    pub(super) probe: ReconcileProbe,
    cancel: CancellationToken,
    task: AbortOnDropHandle<anyhow::Result<()>>,
}

impl RunningController {
    /// Stops it gracefully.
    pub(super) async fn stop(self) {
        self.cancel.cancel();
        self.task.await.expect("no panic").expect("a graceful stop");
    }

    /// Aborts it at any await point, as `kill -9` would.
    pub(super) fn kill(self) {
        self.task.abort();
    }

    pub(super) async fn wait(self) -> anyhow::Result<()> {
        self.task.await.expect("no panic")
    }
}

impl TestEnv {
    /// Creates a namespace on the API server that tests share.
    pub(super) async fn start() -> Self {
        let stage = Self::from_server(ApiServer::shared().await).await;
        stage.install_crds().await;
        stage
    }

    /// Like [`Stage::set`], for a test that kills controllers.
    pub(super) async fn with_kill_rate(kill_rate: KillRate) -> Self {
        let stage = Self::start().await;
        Self { kill_rate, ..stage }
    }

    /// Starts a dedicated API server. The test may stop it and access its etcd.
    pub(super) async fn start_dedicated() -> Self {
        let stage = Self::from_server(ApiServer::start().await.with_controllers().await).await;
        stage.install_crds().await;
        stage
    }

    /// Starts a dedicated API server without Kubernetes controllers and without our CRDs.
    pub(super) async fn start_without_crds() -> Self {
        Self::from_server(ApiServer::start().await).await
    }

    async fn from_server(server: ApiServer) -> Self {
        let client = server.client().await;
        let namespace = server.create_namespace().await;
        Self {
            server,
            client,
            namespace,
            rounds: KubeletRounds::default(),
            kill_rate: KillRate::default(),
        }
    }

    /// Installs the CRDs and waits until they are served.
    pub(super) async fn install_crds(&self) {
        self.server.create_crds(load_crds()).await;
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Starts a controller with the default configuration.
    pub(super) async fn start_controller(&self) -> RunningController {
        self.start_controller_with(|_| {}).await
    }

    pub(super) async fn start_controller_with(
        &self,
        change: impl FnOnce(&mut OperatorConfiguration),
    ) -> RunningController {
        let client = self.server.client().await;
        self.start_controller_via(client, change)
    }

    /// Starts a controller that uses this client.
    pub(super) fn start_controller_via(
        &self,
        client: Client,
        change: impl FnOnce(&mut OperatorConfiguration),
    ) -> RunningController {
        let flags = [
            "mainstay-controller",
            "--namespace",
            &self.namespace,
            "--pod-namespace",
            &self.namespace,
        ];
        let (args, unknown) =
            OperatorArgs::parse_known(flags.map(OsString::from)).expect("a command line");
        assert!(unknown.is_empty());
        if std::env::var_os("MAINSTAY_TEST_LOG").is_some() {
            LOG_INIT.call_once(|| args.log.install());
        }
        let mut config = args.load_config().expect("a configuration");
        config.controllers.etcd.enable_etcd_spec_auto_reconcile = true;
        config.controllers.compaction.enabled = true;
        change(&mut config);
        let (metrics, cancel) = (
            ControllerMetrics::new().expect("metrics"),
            CancellationToken::new(),
        );
        let (readiness, probe) = (Readiness::default(), ReconcileProbe::enabled());
        let manager = Manager {
            args,
            config,
            client,
            metrics: metrics.clone(),
            readiness: readiness.clone(),
            probe: probe.clone(),
            cancel: cancel.clone(),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(manager.run()));
        RunningController {
            metrics,
            readiness,
            probe,
            cancel,
            task,
        }
    }

    /// Creates an Etcd with this spec merged into the required fields.
    pub(super) async fn create_etcd(&self, name: &str, spec: Value) -> Etcd {
        let mut whole = json!({ "labels": {}, "etcd": {}, "backup": {}, "replicas": 3 });
        merge_json(&mut whole, spec);
        let etcd = json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
            "metadata": { "name": name }, "spec": whole,
        });
        let etcd: Etcd = serde_json::from_value(etcd).expect("an Etcd");
        self.api()
            .create(&PostParams::default(), &etcd)
            .await
            .expect("create an Etcd")
    }

    /// Applies a merge patch to an Etcd.
    pub(super) async fn patch_etcd(&self, name: &str, patch: Value) {
        let etcds = self.api::<Etcd>();
        etcds
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .expect("change an Etcd");
    }

    pub(super) async fn get_etcd(&self, name: &str) -> Etcd {
        self.api().get(name).await.expect("an Etcd")
    }

    /// Waits until an object exists and matches.
    pub(super) async fn wait_for<K>(
        &self,
        name: &str,
        what: &str,
        mut predicate: impl FnMut(&K) -> bool,
    ) -> K
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        loop {
            let found = self.api::<K>().get_opt(name).await.expect("get an object");
            if let Some(found) = found.as_ref().filter(|found| predicate(found)) {
                return found.clone();
            }
            assert!(
                Instant::now() < deadline,
                "{name} was never {what}: {found:?}\n{}",
                self.diagnosis().await
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a condition holds.
    pub(super) async fn wait_until(&self, what: &str, mut predicate: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while !predicate().await {
            assert!(
                Instant::now() < deadline,
                "never: {what}\n{}",
                self.diagnosis().await
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn diagnosis(&self) -> String {
        super::diagnosis::namespace(&self.client, &self.namespace).await
    }

    /// Waits for a StatefulSet with this number of replicas.
    pub(super) async fn wait_for_replicas(&self, name: &str, replicas: i32) -> StatefulSet {
        let has = |set: &StatefulSet| {
            set.spec
                .as_ref()
                .is_some_and(|spec| spec.replicas == Some(replicas))
        };
        self.wait_for(name, "scaled to that size", has).await
    }

    /// Waits until a condition has this status.
    pub(super) async fn wait_for_condition(
        &self,
        name: &str,
        type_: ConditionType,
        status: ConditionStatus,
    ) -> Condition {
        let find = |etcd: &Etcd| {
            let conditions = etcd.status.as_ref()?.conditions.as_ref()?;
            conditions
                .iter()
                .find(|one| one.type_ == type_ && one.status == status)
                .cloned()
        };
        let what = format!("{type_}={status}");
        find(
            &self
                .wait_for(name, &what, |etcd| find(etcd).is_some())
                .await,
        )
        .expect("found by the wait")
    }

    /// Waits until the last operation succeeded for the current generation and all members are ready.
    pub(super) async fn wait_settled(&self, name: &str) -> Etcd {
        self.wait_for(name, "settled", |etcd: &Etcd| {
            let status = etcd.status.as_ref();
            let last = status.and_then(|status| status.last_operation.as_ref());
            let is_done =
                last.is_some_and(|last| last.state == mainstay_crds::OperationState::Succeeded);
            let conditions = status.and_then(|status| status.conditions.as_ref());
            let all_ready = conditions.into_iter().flatten().any(|one| {
                one.type_ == ConditionType::AllMembersReady && one.status == ConditionStatus::True
            });
            is_done
                && (all_ready || etcd.spec.replicas == 0)
                && status.and_then(|status| status.observed_generation) == etcd.metadata.generation
        })
        .await
    }

    /// Number of managed objects of a kind.
    pub(super) async fn count_objects<K>(&self) -> usize
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        self.api::<K>()
            .list(&ListParams::default().labels("app.kubernetes.io/managed-by=etcd-druid"))
            .await
            .expect("list")
            .items
            .len()
    }
}

fn load_crds() -> impl Iterator<Item = CustomResourceDefinition> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/yaml");
    let files = std::fs::read_dir(folder).expect("the folder of CRDs");
    files.map(|file| {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a CRD");
        serde_norway::from_str(&text).expect("a CRD")
    })
}

fn merge_json(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge_json(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
