//! Detects an idle controller by what it has observed and reconciled, not by seconds without a write.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use mainstay_controller::probe::ObjectVersion;
use mainstay_crds::{Etcd, EtcdCopyBackupsTask, EtcdOpsTask};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::test_env::{POLL_INTERVAL, RunningController, TestEnv, WAIT_TIMEOUT};

/// Makes every annotation value unique, so that every patch is a change.
static TOUCH_COUNTER: AtomicU64 = AtomicU64::new(0);
/// Finalizers of the garbage collector: the object is deleted once its dependents are.
const DELETION_FINALIZERS: [&str; 2] = ["foregroundDeletion", "orphan"];
/// Timeout of a request to an etcd server on this machine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

impl TestEnv {
    /// Waits until the controller has nothing left to do: its caches hold every object at its current version, the controllers of
    /// Kubernetes and the kubelet are done, and one more reconcile of everything wrote nothing and changed nothing of that.
    pub(super) async fn wait_until_idle(&self, controller: &RunningController) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while let Err(busy) = self.check_idle(controller).await {
            assert!(Instant::now() < deadline, "never idle: {busy}");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The error names what still has work left.
    async fn check_idle(&self, controller: &RunningController) -> Result<(), String> {
        let writes = controller.metrics.total_writes();
        let before = self.check_synced(controller).await?;
        self.reconcile_again(controller).await;
        let after = self.check_synced(controller).await?;
        let changed: Vec<_> = before.symmetric_difference(&after).collect();
        let written = controller.metrics.total_writes() - writes;
        match (&*changed, written) {
            ([], 0) => Ok(()),
            _ => Err(format!(
                "one more reconcile made {written} writes and changed {changed:?}"
            )),
        }
    }

    /// Triggers one more reconcile of every resource and waits until it has finished.
    pub(super) async fn reconcile_again(&self, controller: &RunningController) {
        self.touch_all::<Etcd>(controller).await;
        self.touch_all::<EtcdOpsTask>(controller).await;
        self.touch_all::<EtcdCopyBackupsTask>(controller).await;
    }

    async fn touch_all<K>(&self, controller: &RunningController)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let (api, kind) = (self.api::<K>(), kind_name::<K>());
        let resources = api.list_metadata(&ListParams::default()).await;
        for resource in resources.expect("a list") {
            let (name, touch) = (
                resource.name_any(),
                TOUCH_COUNTER.fetch_add(1, Ordering::Relaxed),
            );
            let touch = json!({ "metadata": { "annotations": { "touch": touch.to_string() } } });
            let (params, patch) = (PatchParams::default(), Patch::Merge(&touch));
            let Ok(touched) = api.patch_metadata(&name, &params, &patch).await else {
                continue; // deleted meanwhile
            };
            let touched = parse_version(touched.resource_version());
            let what = format!("{kind} {name} is reconciled once more");
            self.wait_until(&what, async || {
                let key = (kind, &*self.namespace, &*name);
                let last = controller.probe.reconciled_version(key.0, key.1, key.2);
                let is_gone = async || {
                    api.get_metadata_opt(&name)
                        .await
                        .is_ok_and(|it| it.is_none())
                };
                parse_version(last) >= touched || is_gone().await
            })
            .await;
        }
    }

    /// All objects, once the controller has observed their current versions and no other controller has work left on them.
    async fn check_synced(
        &self,
        controller: &RunningController,
    ) -> Result<BTreeSet<ObjectVersion>, String> {
        if !self.rounds.is_next_round_quiet().await {
            return Err("the kubelet is busy".to_owned());
        }
        if !self.are_controllers_done().await {
            return Err("the Kubernetes controllers are busy".to_owned());
        }
        let cached = controller.probe.cached_versions(&self.namespace);
        let cached = cached.ok_or("the caches are not filled")?;
        let current = self.current_versions().await;
        let outdated: Vec<_> = current.symmetric_difference(&cached).collect();
        if !outdated.is_empty() {
            return Err(format!("outdated in the caches: {outdated:?}"));
        }
        match self.find_unpublished_member().await {
            Some(member) => Err(format!(
                "{member} responds, and its version is not published"
            )),
            None => Ok(current),
        }
    }

    /// All objects the controller watches, at their current versions.
    async fn current_versions(&self) -> BTreeSet<ObjectVersion> {
        let all = [
            self.list_versions::<ServiceAccount>().await,
            self.list_versions::<Role>().await,
            self.list_versions::<RoleBinding>().await,
            self.list_versions::<Lease>().await,
            self.list_versions::<PodDisruptionBudget>().await,
            self.list_versions::<Service>().await,
            self.list_versions::<ConfigMap>().await,
            self.list_versions::<StatefulSet>().await,
            self.list_versions::<Pod>().await,
            self.list_versions::<PersistentVolumeClaim>().await,
            self.list_versions::<Job>().await,
        ];
        all.into_iter().flatten().collect()
    }

    async fn list_versions<K>(&self) -> Vec<ObjectVersion>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let ours = ListParams::default().labels("app.kubernetes.io/managed-by=etcd-druid");
        let found = self.api::<K>().list_metadata(&ours).await;
        let version = |object: kube::core::PartialObjectMeta<K>| ObjectVersion {
            kind: kind_name::<K>().to_owned(),
            name: object.name_any(),
            version: object.resource_version().unwrap_or_default(),
        };
        found.expect("a list").into_iter().map(version).collect()
    }

    /// Whether the Kubernetes controllers are done: StatefulSets have their pods, and their status counts all of them.
    async fn are_controllers_done(&self) -> bool {
        let pods = list_all(&self.api::<Pod>()).await;
        let (sets, jobs) = (
            list_all(&self.api::<StatefulSet>()).await,
            list_all(&self.api::<Job>()).await,
        );
        let is_terminating = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        !pods.iter().any(is_terminating)
            && sets.iter().all(|set| is_status_current(set, &pods))
            && jobs.iter().all(is_job_settled)
    }

    /// A member that responds and whose version is missing in the status. The controller retries silent members only now and
    /// then, so such a member may still cause a status write.
    async fn find_unpublished_member(&self) -> Option<String> {
        for etcd in list_all(&self.api::<Etcd>()).await {
            let port = etcd.spec.etcd.client_port.unwrap_or(2379);
            let members = etcd.status.and_then(|status| status.members);
            let silent = members
                .into_iter()
                .flatten()
                .filter(|one| one.version.is_none());
            for member in silent {
                let pod = self.api::<Pod>().get_opt(&member.name).await;
                let status = pod.expect("get a pod").and_then(|pod| pod.status);
                let address = status.and_then(|status| status.pod_ip);
                let url = address.map(|address| format!("http://{address}:{port}"));
                if let Some(url) = url
                    && is_serving(&url).await
                {
                    return Some(member.name);
                }
            }
        }
        None
    }
}

async fn is_serving(url: &str) -> bool {
    let requested = async {
        let mut client = etcd_client::Client::connect([url], None).await.ok()?;
        let status = client.status().await.ok()?;
        // Without a leader it reports its status, but the controller counts it as not serving.
        (status.leader() != 0).then_some(())
    };
    matches!(timeout(RESPONSE_TIMEOUT, requested).await, Ok(Some(())))
}

async fn list_all<K>(api: &Api<K>) -> Vec<K>
where
    K: Clone + Debug + DeserializeOwned,
{
    api.list(&ListParams::default())
        .await
        .expect("a list")
        .items
}

fn kind_name<K: Resource<DynamicType = ()>>() -> &'static str {
    match K::kind(&()) {
        std::borrow::Cow::Borrowed(kind) => kind,
        std::borrow::Cow::Owned(kind) => panic!("{kind} must be a constant"),
    }
}

/// Resource versions are revisions of one etcd, thus comparable.
fn parse_version(version: Option<String>) -> Option<u64> {
    version.and_then(|version| version.parse().ok())
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let runs = status.and_then(|status| status.phase.as_deref()) == Some("Running");
    runs && conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

fn is_status_current(set: &StatefulSet, pods: &[Pod]) -> bool {
    let (Some(spec), Some(status)) = (&set.spec, &set.status) else {
        return false;
    };
    let owner = set.uid();
    let is_its = |pod: &&Pod| {
        let mut owners = pod.owner_references().iter();
        owners.any(|one| Some(&one.uid) == owner.as_ref())
    };
    let own: Vec<&Pod> = pods.iter().filter(is_its).collect();
    let count = |is: &dyn Fn(&Pod) -> bool| {
        let found = own.iter().filter(|pod| is(pod)).count();
        i32::try_from(found).ok()
    };
    let hash = "controller-revision-hash";
    let is_newest = |pod: &Pod| pod.labels().get(hash) == status.update_revision.as_ref();
    status.observed_generation == set.metadata.generation
        && count(&|_| true) == spec.replicas
        && Some(status.replicas) == spec.replicas
        && count(&is_ready) == Some(status.ready_replicas.unwrap_or_default())
        && count(&is_newest) == Some(status.updated_replicas.unwrap_or_default())
}

/// Whether the Job controller has observed a Job, and no deletion is in progress except one that a test delays.
fn is_job_settled(job: &Job) -> bool {
    let is_held = || {
        let mut finalizers = job.finalizers().iter();
        finalizers.any(|one| !DELETION_FINALIZERS.contains(&one.as_str()))
    };
    let is_started = |status: &k8s_openapi::api::batch::v1::JobStatus| status.start_time.is_some();
    match job.metadata.deletion_timestamp {
        Some(_) => is_held(),
        None => job.status.as_ref().is_some_and(is_started),
    }
}
