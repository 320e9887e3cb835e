//! What every test needs: an API server that knows the resources, a controller, and ways to look.

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use mainstay_controller::args::Args;
use mainstay_controller::config::OperatorConfiguration;
use mainstay_controller::http::Readiness;
use mainstay_controller::insight::Insight;
use mainstay_controller::metrics::Metrics;
use mainstay_controller::run::Parts;
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd};
use mainstay_testkit::kube::ApiServer;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::kubelet::Rounds;
use super::wire::Kills;

/// On a loaded machine the controllers of Kubernetes take their time.
pub(super) const PATIENCE: Duration = Duration::from_mins(3);
pub(super) const POLL: Duration = Duration::from_millis(100);

/// With `MAINSTAY_TEST_LOG` set, a test shows what its controllers say.
static LOG: Once = Once::new();

pub(super) struct Stage {
    pub(super) server: ApiServer,
    pub(super) client: Client,
    pub(super) namespace: String,
    /// What the kubelet does here.
    pub(super) rounds: Rounds,
    /// How often controllers are killed here.
    pub(super) kills: Kills,
}

/// A controller that runs in this process, until dropped.
pub(super) struct Running {
    pub(super) metrics: Metrics,
    pub(super) readiness: Readiness,
    pub(super) insight: Insight,
    cancel: CancellationToken,
    task: AbortOnDropHandle<anyhow::Result<()>>,
}

impl Running {
    /// Ends it in order.
    pub(super) async fn stop(self) {
        self.cancel.cancel();
        self.task.await.expect("no panic").expect("an orderly end");
    }

    /// Ends it between any two instructions, as `kill -9` would.
    pub(super) fn kill(self) {
        self.task.abort();
    }

    pub(super) async fn ended(self) -> anyhow::Result<()> {
        self.task.await.expect("no panic")
    }
}

impl Stage {
    /// A namespace of an API server that other tests may use as well.
    pub(super) async fn set() -> Self {
        let stage = Self::on(ApiServer::shared().await).await;
        stage.define().await;
        stage
    }

    /// The same for a test that kills controllers.
    pub(super) async fn with(kills: Kills) -> Self {
        let stage = Self::set().await;
        Self { kills, ..stage }
    }

    /// An API server of the test's own, which can be stopped and looked into.
    pub(super) async fn alone() -> Self {
        let stage = Self::on(ApiServer::start().await.with_controllers().await).await;
        stage.define().await;
        stage
    }

    /// An API server without controllers, which knows the resources of Kubernetes only.
    pub(super) async fn bare() -> Self {
        Self::on(ApiServer::start().await).await
    }

    async fn on(server: ApiServer) -> Self {
        let client = server.client().await;
        let namespace = server.namespace().await;
        Self {
            server,
            client,
            namespace,
            rounds: Rounds::default(),
            kills: Kills::default(),
        }
    }

    /// Teaches the API server the resources, and waits until it has learnt.
    pub(super) async fn define(&self) {
        self.server.define(definitions()).await;
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Starts a controller with the defaults.
    pub(super) async fn control(&self) -> Running {
        self.control_with(|_| {}).await
    }

    pub(super) async fn control_with(
        &self,
        change: impl FnOnce(&mut OperatorConfiguration),
    ) -> Running {
        let client = self.server.client().await;
        self.control_through(client, change)
    }

    /// Starts a controller with a connection of its own.
    pub(super) fn control_through(
        &self,
        client: Client,
        change: impl FnOnce(&mut OperatorConfiguration),
    ) -> Running {
        let flags = [
            "mainstay-controller",
            "--namespace",
            &self.namespace,
            "--pod-namespace",
            &self.namespace,
        ];
        let (args, unknown) = Args::read(flags.map(OsString::from)).expect("a command line");
        assert!(unknown.is_empty());
        if std::env::var_os("MAINSTAY_TEST_LOG").is_some() {
            LOG.call_once(|| args.log.install());
        }
        let mut config = args.configuration().expect("a configuration");
        config.controllers.etcd.enable_etcd_spec_auto_reconcile = true;
        config.controllers.compaction.enabled = true;
        change(&mut config);
        let (metrics, cancel) = (Metrics::new().expect("metrics"), CancellationToken::new());
        let (readiness, insight) = (Readiness::default(), Insight::recording());
        let parts = Parts {
            args,
            config,
            client,
            metrics: metrics.clone(),
            readiness: readiness.clone(),
            insight: insight.clone(),
            cancel: cancel.clone(),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(parts.run()));
        Running {
            metrics,
            readiness,
            insight,
            cancel,
            task,
        }
    }

    /// Creates an Etcd with this spec on top of what every spec needs.
    pub(super) async fn create(&self, name: &str, spec: Value) -> Etcd {
        let mut whole = json!({ "labels": {}, "etcd": {}, "backup": {}, "replicas": 3 });
        merge(&mut whole, spec);
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

    /// Changes an Etcd by a merge patch.
    pub(super) async fn change(&self, name: &str, patch: Value) {
        let etcds = self.api::<Etcd>();
        etcds
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .expect("change an Etcd");
    }

    pub(super) async fn etcd(&self, name: &str) -> Etcd {
        self.api().get(name).await.expect("an Etcd")
    }

    /// Waits until an object is there and is as expected.
    pub(super) async fn until<K>(&self, name: &str, what: &str, mut is: impl FnMut(&K) -> bool) -> K
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self
                .api::<K>()
                .get_opt(name)
                .await
                .expect("ask for an object");
            if let Some(found) = found.as_ref().filter(|found| is(found)) {
                return found.clone();
            }
            assert!(
                Instant::now() < deadline,
                "{name} was never {what}: {found:?}\n{}",
                self.diagnosis().await
            );
            sleep(POLL).await;
        }
    }

    /// Waits until something holds.
    pub(super) async fn eventually(&self, what: &str, mut is: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is().await {
            assert!(
                Instant::now() < deadline,
                "never: {what}\n{}",
                self.diagnosis().await
            );
            sleep(POLL).await;
        }
    }

    async fn diagnosis(&self) -> String {
        super::diagnosis::namespace(&self.client, &self.namespace).await
    }

    /// Waits for a StatefulSet of so many pods.
    pub(super) async fn set_of(&self, name: &str, replicas: i32) -> StatefulSet {
        let has = |set: &StatefulSet| {
            set.spec
                .as_ref()
                .is_some_and(|spec| spec.replicas == Some(replicas))
        };
        self.until(name, "of that size", has).await
    }

    /// Waits for a condition.
    pub(super) async fn condition(
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
        find(&self.until(name, &what, |etcd| find(etcd).is_some()).await).expect("just seen")
    }

    /// Waits until nothing is to do for an Etcd, and all its members are there.
    pub(super) async fn settled(&self, name: &str) -> Etcd {
        self.until(name, "settled", |etcd: &Etcd| {
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

    /// How many objects of a kind the controller made.
    pub(super) async fn count<K>(&self) -> usize
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

fn definitions() -> impl Iterator<Item = CustomResourceDefinition> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/yaml");
    let files = std::fs::read_dir(folder).expect("the definitions");
    files.map(|file| {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a definition");
        serde_norway::from_str(&text).expect("a definition")
    })
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
