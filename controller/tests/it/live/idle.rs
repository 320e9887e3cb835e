//! Whether work is left, judged by what was observed and reconciled, not by seconds without a write.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use mainstay_controller::insight::Version;
use mainstay_crds::{Etcd, EtcdCopyBackupsTask, EtcdOpsTask};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::stage::{PATIENCE, POLL, Running, Stage};

/// No annotation has the same value twice.
static LOOK: AtomicU64 = AtomicU64::new(0);
/// What keeps an object only until its dependents are deleted.
const PASSING: [&str; 2] = ["foregroundDeletion", "orphan"];
/// How long a server may take to answer that runs beside the test.
const ANSWER: Duration = Duration::from_secs(5);

impl Stage {
    /// Waits until the controller has nothing left to do: its caches hold every object at its current version, the controllers of
    /// Kubernetes and the kubelet are done, and one more reconcile of everything wrote nothing and changed nothing of that.
    pub(super) async fn at_rest(&self, controller: &Running) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(busy) = self.is_at_rest(controller).await {
            assert!(Instant::now() < deadline, "never at rest: {busy}");
            sleep(POLL).await;
        }
    }

    /// The error names who still has work left.
    async fn is_at_rest(&self, controller: &Running) -> Result<(), String> {
        let writes = controller.metrics.writes();
        let before = self.all_is_seen(controller).await?;
        self.look_again(controller).await;
        let after = self.all_is_seen(controller).await?;
        let changed: Vec<_> = before.symmetric_difference(&after).collect();
        let written = controller.metrics.writes() - writes;
        match (&*changed, written) {
            ([], 0) => Ok(()),
            _ => Err(format!(
                "one more reconcile made {written} writes and changed {changed:?}"
            )),
        }
    }

    /// Lets every resource be reconciled once more, and waits until it was.
    pub(super) async fn look_again(&self, controller: &Running) {
        self.touch::<Etcd>(controller).await;
        self.touch::<EtcdOpsTask>(controller).await;
        self.touch::<EtcdCopyBackupsTask>(controller).await;
    }

    async fn touch<K>(&self, controller: &Running)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let (api, kind) = (self.api::<K>(), kind::<K>());
        let resources = api.list_metadata(&ListParams::default()).await;
        for resource in resources.expect("a list") {
            let (name, look) = (resource.name_any(), LOOK.fetch_add(1, Ordering::Relaxed));
            let look = json!({ "metadata": { "annotations": { "look": look.to_string() } } });
            let (params, patch) = (PatchParams::default(), Patch::Merge(&look));
            let Ok(touched) = api.patch_metadata(&name, &params, &patch).await else {
                continue; // deleted meanwhile
            };
            let touched = number(touched.resource_version());
            let what = format!("{kind} {name} is reconciled once more");
            self.eventually(&what, async || {
                let of = (kind, &*self.namespace, &*name);
                let last = controller.insight.reconciled_version(of.0, of.1, of.2);
                let is_gone = async || {
                    api.get_metadata_opt(&name)
                        .await
                        .is_ok_and(|it| it.is_none())
                };
                number(last) >= touched || is_gone().await
            })
            .await;
        }
    }

    /// All objects, once the controller has observed their current versions and no other controller has work left on them.
    async fn all_is_seen(&self, controller: &Running) -> Result<BTreeSet<Version>, String> {
        if !self.rounds.is_quiet().await {
            return Err("the kubelet is at work".to_owned());
        }
        if !self.others_are_done().await {
            return Err("the controllers of Kubernetes are at work".to_owned());
        }
        let cached = controller.insight.cached(&self.namespace);
        let cached = cached.ok_or("the caches are not filled")?;
        // The version of the budgets depends on the API server, and only the controller writes them.
        let is_compared = |one: &Version| one.kind != "PodDisruptionBudget";
        let cached: BTreeSet<Version> = cached.into_iter().filter(is_compared).collect();
        let current = self.current().await;
        let unseen: Vec<_> = current.symmetric_difference(&cached).collect();
        if !unseen.is_empty() {
            return Err(format!("not seen as they are: {unseen:?}"));
        }
        match self.unpublished_member().await {
            Some(member) => Err(format!(
                "{member} answers, and its version is not published"
            )),
            None => Ok(current),
        }
    }

    /// All objects the controller watches, at their current versions.
    async fn current(&self) -> BTreeSet<Version> {
        let all = [
            self.versions::<ServiceAccount>().await,
            self.versions::<Role>().await,
            self.versions::<RoleBinding>().await,
            self.versions::<Lease>().await,
            self.versions::<Service>().await,
            self.versions::<ConfigMap>().await,
            self.versions::<StatefulSet>().await,
            self.versions::<Pod>().await,
            self.versions::<PersistentVolumeClaim>().await,
            self.versions::<Job>().await,
        ];
        all.into_iter().flatten().collect()
    }

    async fn versions<K>(&self) -> Vec<Version>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let ours = ListParams::default().labels("app.kubernetes.io/managed-by=etcd-druid");
        let found = self.api::<K>().list_metadata(&ours).await;
        let version = |object: kube::core::PartialObjectMeta<K>| Version {
            kind: kind::<K>().to_owned(),
            name: object.name_any(),
            version: object.resource_version().unwrap_or_default(),
        };
        found.expect("a list").into_iter().map(version).collect()
    }

    /// Whether the controllers of Kubernetes have nothing to do: sets have their pods, and all is counted in their status.
    async fn others_are_done(&self) -> bool {
        let pods = all(&self.api::<Pod>()).await;
        let (sets, jobs) = (
            all(&self.api::<StatefulSet>()).await,
            all(&self.api::<Job>()).await,
        );
        let is_going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        !pods.iter().any(is_going)
            && sets.iter().all(|set| is_counted(set, &pods))
            && jobs.iter().all(is_known)
    }

    /// A member that answers and whose version the status does not have. Who does not answer is asked again only now and then.
    async fn unpublished_member(&self) -> Option<String> {
        for etcd in all(&self.api::<Etcd>()).await {
            let port = etcd.spec.etcd.client_port.unwrap_or(2379);
            let members = etcd.status.and_then(|status| status.members);
            let silent = members
                .into_iter()
                .flatten()
                .filter(|one| one.version.is_none());
            for member in silent {
                let pod = self.api::<Pod>().get_opt(&member.name).await;
                let status = pod.expect("ask for a pod").and_then(|pod| pod.status);
                let address = status.and_then(|status| status.pod_ip);
                let url = address.map(|address| format!("http://{address}:{port}"));
                if let Some(url) = url
                    && answers(&url).await
                {
                    return Some(member.name);
                }
            }
        }
        None
    }
}

async fn answers(url: &str) -> bool {
    let asked = async {
        let mut client = etcd_client::Client::connect([url], None).await.ok()?;
        let status = client.status().await.ok()?;
        // Without a leader it reports its status, but the controller counts it as not serving.
        (status.leader() != 0).then_some(())
    };
    matches!(timeout(ANSWER, asked).await, Ok(Some(())))
}

async fn all<K>(api: &Api<K>) -> Vec<K>
where
    K: Clone + Debug + DeserializeOwned,
{
    api.list(&ListParams::default())
        .await
        .expect("a list")
        .items
}

fn kind<K: Resource<DynamicType = ()>>() -> &'static str {
    match K::kind(&()) {
        std::borrow::Cow::Borrowed(kind) => kind,
        std::borrow::Cow::Owned(kind) => panic!("{kind} is no constant"),
    }
}

/// Versions are revisions of one etcd.
fn number(version: Option<String>) -> Option<u64> {
    version.and_then(|version| version.parse().ok())
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let runs = status.and_then(|status| status.phase.as_deref()) == Some("Running");
    runs && conditions.any(|one| one.type_ == "Ready" && one.status == "True")
}

fn is_counted(set: &StatefulSet, pods: &[Pod]) -> bool {
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

/// Whether the controller of Jobs has seen a Job, and nothing is under way to delete it but what a test holds up.
fn is_known(job: &Job) -> bool {
    let is_held = || {
        let mut finalizers = job.finalizers().iter();
        finalizers.any(|one| !PASSING.contains(&one.as_str()))
    };
    let is_started = |status: &k8s_openapi::api::batch::v1::JobStatus| status.start_time.is_some();
    match job.metadata.deletion_timestamp {
        Some(_) => is_held(),
        None => job.status.as_ref().is_some_and(is_started),
    }
}
