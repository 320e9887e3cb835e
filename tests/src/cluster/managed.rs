//! An `Etcd` of a cluster, as a person has one: created, changed, watched, written to.
//!
//! ```text
//! spec ─ apply ─► Etcd ─ controller ─► pods ─► members
//!                  └ status ─► settled?         └► Service ◄─ load
//! ```

mod tasks;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use mainstay_crds::etcd::{APPROVE_RECOVERY, DrillStatus, RecoveryPhase};
use mainstay_crds::{Condition, ConditionStatus, ConditionType, Etcd, OperationState};
use mainstay_ids::Revision;
use mainstay_testkit::place::env_path;
use serde_json::{Value, json};

use super::addresses::s3_url;
use super::attend::volumes::MEMORY_CLASS;
use super::configuration::{S3_KEY_ID, S3_SECRET};
use super::identity::{EncryptedConnections, TlsIdentity};
use super::load::WriteLoad;
use super::member::{MemberPod, connect, wait_for_members};
use super::up::BUCKET;
use super::wait::{WaitTimeout, eventually};

/// The secret with the credentials of the store.
const CREDENTIALS_SECRET: &str = "backup-store";
/// Where a load writes.
const LOAD_PREFIX: &str = "/load/";
/// Two segments of the log, made in advance, and a database.
const VOLUME_SIZE: &str = "512Mi";

/// Why something could not be done to an Etcd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagedEtcdError {
    /// The API server refused.
    #[error("{doing} {what}")]
    Api {
        /// What was tried.
        doing: &'static str,
        /// With what.
        what: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// It has no certificates.
    #[error("make certificates")]
    Identity(#[source] rcgen::Error),
    /// It did not become what it should be.
    #[error(transparent)]
    Timeout(#[from] WaitTimeout),
}

/// One Etcd.
#[derive(Clone)]
pub struct ManagedEtcd {
    client: Client,
    namespace: String,
    name: String,
    /// What its clients need, if they need certificates.
    identity: Option<Arc<TlsIdentity>>,
}

/// Where the backups go: into the cluster's own store, or the S3 server that `MAINSTAY_TEST_STORE_URL` names.
pub fn store_url() -> String {
    let named = env_path("MAINSTAY_TEST_STORE_URL");
    named.map_or_else(s3_url, |url| url.display().to_string())
}

/// Volumes of exactly the size asked for, or of the class `MAINSTAY_TEST_STORAGE_CLASS` names.
pub fn storage_class() -> String {
    let named = env_path("MAINSTAY_TEST_STORAGE_CLASS");
    named.map_or_else(|| MEMORY_CLASS.to_owned(), |class| class.display().to_string())
}

/// What an Etcd with a backup is asked to be.
pub fn etcd_spec(namespace: &str, name: &str, replicas: i32) -> Value {
    json!({
        "replicas": replicas,
        "labels": {},
        "etcd": {},
        "backup": {
            "store": {
                "provider": "S3",
                "container": BUCKET,
                "prefix": format!("{namespace}/{name}"),
                "endpointOverride": store_url(),
                "secretRef": {"name": CREDENTIALS_SECRET},
            },
            "deltaSnapshotPeriod": "5s",
        },
        "storageClass": storage_class(),
        "storageCapacity": VOLUME_SIZE,
    })
}

impl ManagedEtcd {
    /// Creates it, and the secret its backup needs.
    pub async fn create(
        client: Client,
        namespace: &str,
        name: &str,
        spec: &Value,
    ) -> Result<Self, ManagedEtcdError> {
        let managed = Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: None,
        };
        managed
            .apply_secrets(&[(CREDENTIALS_SECRET, store_credentials())])
            .await?;
        managed.apply(json!({"spec": spec})).await?;
        Ok(managed)
    }

    /// Creates it with an annotation that keeps everybody from acting on it.
    pub async fn create_suspended(
        client: Client,
        namespace: &str,
        name: &str,
        (spec, annotation): (&Value, &str),
    ) -> Result<Self, ManagedEtcdError> {
        let managed = Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: None,
        };
        managed
            .apply_secrets(&[(CREDENTIALS_SECRET, store_credentials())])
            .await?;
        let metadata = json!({"annotations": {annotation: "true"}});
        managed
            .apply(json!({"metadata": metadata, "spec": spec}))
            .await?;
        Ok(managed)
    }

    /// Sets an annotation, or takes it away.
    pub async fn annotate(&self, key: &str, value: Option<&str>) -> Result<(), ManagedEtcdError> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let etcds = self.api::<Etcd>();
        let params = PatchParams::default();
        let changed = etcds.patch(&self.name, &params, &patch).await;
        changed.map_err(self.api_error("annotate"))?;
        Ok(())
    }

    /// Creates it with certificates.
    pub async fn create_encrypted(
        client: Client,
        namespace: &str,
        name: &str,
        (mut spec, encrypted): (Value, EncryptedConnections),
    ) -> Result<Self, ManagedEtcdError> {
        let identity = TlsIdentity::new(namespace, name).map_err(ManagedEtcdError::Identity)?;
        let identity = Arc::new(identity);
        identity.add_to_spec(&mut spec, encrypted);
        let managed = Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: encrypted.clients.then(|| Arc::clone(&identity)),
        };
        managed.apply_secrets(&identity.to_secrets()).await?;
        managed
            .apply_secrets(&[(CREDENTIALS_SECRET, store_credentials())])
            .await?;
        managed.apply(json!({"spec": spec})).await?;
        Ok(managed)
    }

    /// Gives it new certificates, of the same authority. Its members are the new ones' clients from now on: `server_name` is
    /// a name only the new certificates are for.
    pub async fn renew_certificates(&mut self, server_name: &str) -> Result<(), ManagedEtcdError> {
        if let Some(identity) = &self.identity {
            let renewed = identity.renew(server_name);
            let renewed = Arc::new(renewed.map_err(ManagedEtcdError::Identity)?);
            self.apply_secrets(&renewed.to_secrets()).await?;
            self.identity = Some(renewed);
        }
        Ok(())
    }

    async fn apply_secrets(&self, all: &[(impl AsRef<str>, Value)]) -> Result<(), ManagedEtcdError> {
        let secrets = self.api::<Secret>();
        for (name, data) in all {
            let name = name.as_ref();
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data,
            });
            let applied = secrets.patch(name, &apply_params(), &Patch::Apply(secret)).await;
            applied.map_err(self.api_error("apply a secret of"))?;
        }
        Ok(())
    }

    async fn apply(&self, mut etcd: Value) -> Result<(), ManagedEtcdError> {
        etcd["apiVersion"] = "druid.gardener.cloud/v1alpha1".into();
        etcd["kind"] = "Etcd".into();
        etcd["metadata"]["name"] = self.name.clone().into();
        let etcds = self.api::<Etcd>();
        let applied = etcds.patch(&self.name, &apply_params(), &Patch::Apply(etcd)).await;
        applied.map_err(self.api_error("apply"))?;
        Ok(())
    }

    /// Changes its spec by a merge patch.
    pub async fn patch_spec(&self, spec: Value) -> Result<(), ManagedEtcdError> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let changed = self.api::<Etcd>();
        let changed = changed
            .patch(&self.name, &PatchParams::default(), &patch)
            .await;
        changed.map_err(self.api_error("change"))?;
        Ok(())
    }

    /// Deletes it and waits until it is gone, and its pods with it.
    pub async fn delete(&self) -> Result<(), ManagedEtcdError> {
        let etcds = self.api::<Etcd>();
        let deleted = etcds.delete(&self.name, &DeleteParams::default()).await;
        deleted.map_err(self.api_error("delete"))?;
        let is_gone = async || {
            let is_left = etcds.get_opt(&self.name).await.ok()?.is_some();
            (!is_left && self.list_pods().await.ok()?.is_empty()).then_some(())
        };
        Ok(eventually("no Etcd and no pods", is_gone).await?)
    }

    /// As it is now.
    pub async fn get(&self) -> Result<Etcd, ManagedEtcdError> {
        let etcd = self.api::<Etcd>().get(&self.name).await;
        etcd.map_err(self.api_error("read"))
    }

    /// Waits until nothing is left to do for what its spec asks now.
    pub async fn wait_until_settled(&self) -> Result<Etcd, ManagedEtcdError> {
        let what = format!("Etcd {} to be as its spec asks", self.name);
        let settled = async || self.get().await.ok().filter(is_settled);
        Ok(eventually(&what, settled).await?)
    }

    /// Its members by name, once there are so many and all are ready.
    pub async fn wait_for_members(&self, count: usize) -> Result<Vec<MemberPod>, WaitTimeout> {
        self.wait_for_members_where(count, |_| true).await
    }

    /// The same, once each is as wanted.
    pub async fn wait_for_members_where(
        &self,
        count: usize,
        is_wanted: impl Fn(&MemberPod) -> bool,
    ) -> Result<Vec<MemberPod>, WaitTimeout> {
        let whom = (&*self.selector(), self.identity.as_ref());
        wait_for_members(&self.api(), whom, count, is_wanted).await
    }

    /// Selects its pods.
    pub fn selector(&self) -> String {
        let name = &self.name;
        format!("app.kubernetes.io/part-of={name},app.kubernetes.io/component=etcd-statefulset")
    }

    /// Its pods, in whatever state.
    pub async fn list_pods(&self) -> Result<Vec<Pod>, ManagedEtcdError> {
        let params = ListParams::default().labels(&self.selector());
        let pods = self.api::<Pod>().list(&params).await;
        Ok(pods.map_err(self.api_error("list the pods of"))?.items)
    }

    /// The claim of a member's volume.
    pub fn pvc_name(&self, member: &MemberPod) -> String {
        format!("{}-{}", self.name, member.pod)
    }

    /// Deletes a member's volume, which goes when the pod does, and the pod.
    pub async fn delete_volume(&self, member: &MemberPod) -> Result<(), ManagedEtcdError> {
        let params = DeleteParams::default();
        let claims = self.api::<PersistentVolumeClaim>();
        let deleted = claims.delete(&self.pvc_name(member), &params).await;
        deleted.map_err(self.api_error("delete a claim of"))?;
        self.kill_pod(member).await
    }

    /// Deletes a member's pod, at once and without asking it.
    pub async fn kill_pod(&self, member: &MemberPod) -> Result<(), ManagedEtcdError> {
        let params = DeleteParams::default().grace_period(0);
        let deleted = self.api::<Pod>().delete(&member.pod, &params).await;
        deleted.map_err(self.api_error("delete a pod of"))?;
        Ok(())
    }

    /// Writes to it through its Service until stopped, whichever member answers.
    pub async fn start_load(&self) -> Result<WriteLoad, ManagedEtcdError> {
        self.start_load_paced(None).await
    }

    /// The same without a pause between two writes.
    pub async fn start_unpaced_load(&self) -> Result<WriteLoad, ManagedEtcdError> {
        self.start_load_paced(Some(Duration::ZERO)).await
    }

    async fn start_load_paced(&self, pace: Option<Duration>) -> Result<WriteLoad, ManagedEtcdError> {
        let services = self.api::<Service>();
        let name = format!("{}-client", self.name);
        let address = async || -> Option<Ipv4Addr> {
            let service = services.get(&name).await.ok()?;
            service.spec?.cluster_ip?.parse().ok()
        };
        let address = eventually("the Service of clients", address).await?;
        let identity = self.identity.clone();
        let connect = move || {
            let identity = identity.clone();
            async move { connect(address, identity.as_deref()).await }
        };
        Ok(match pace {
            Some(pace) => WriteLoad::start_with_interval(LOAD_PREFIX, pace, connect),
            None => WriteLoad::start(LOAD_PREFIX, connect),
        })
    }

    /// Waits until the controller says that data is lost.
    pub async fn wait_for_recovery_required(&self) -> Result<Condition, WaitTimeout> {
        let lost = async || {
            let told = find_condition(&self.get().await.ok()?, &ConditionType::RecoveryRequired)?;
            (told.status == ConditionStatus::True).then_some(told)
        };
        eventually("data that is told to be lost", lost).await
    }

    /// Waits until the controller asks whether it may recover what was lost, and approves. Returns what it said.
    pub async fn approve_recovery(&self) -> Result<String, ManagedEtcdError> {
        let asked = async || {
            let recovery = self.get().await.ok()?.status?.mainstay?.recovery?;
            (recovery.phase == RecoveryPhase::AwaitingApproval).then_some(recovery)
        };
        let recovery = eventually("a recovery that waits for approval", asked).await?;
        self.annotate(APPROVE_RECOVERY, Some(&recovery.id)).await?;
        Ok(recovery.message)
    }

    /// Waits until a rehearsed restore went wrong, or reached this revision and was compared with etcd.
    pub async fn wait_for_drill(&self, revision: Revision) -> Result<DrillStatus, WaitTimeout> {
        let drilled = async || {
            let drill = self.get().await.ok()?.status?.mainstay?.restore_drill?;
            let reached = drill.revision.is_some_and(|reached| reached >= revision.0);
            let is_compared = drill.message.contains("it is what etcd held");
            (!drill.succeeded || reached && is_compared).then_some(drill)
        };
        eventually("a rehearsed restore", drilled).await
    }

    /// Waits until the backup holds a revision.
    pub async fn wait_until_backed_up(&self, revision: Revision) -> Result<(), WaitTimeout> {
        let is_there = async || (self.backup_revision().await? >= revision).then_some(());
        eventually(&format!("a backup of revision {revision}"), is_there).await
    }

    /// The newest revision of the backup, as the Leases of its snapshots tell.
    pub async fn backup_revision(&self) -> Option<Revision> {
        let leases = self.api::<Lease>();
        let newest = async |kind: &str| -> Option<i64> {
            let lease = leases
                .get(&format!("{}-{kind}-snap", self.name))
                .await
                .ok()?;
            lease.spec?.holder_identity?.parse().ok()
        };
        let newest = newest("full").await.max(newest("delta").await)?;
        Some(Revision(newest))
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn api_error(&self, doing: &'static str) -> impl FnOnce(kube::Error) -> ManagedEtcdError {
        let what = format!("Etcd {}/{}", self.namespace, self.name);
        move |source| ManagedEtcdError::Api {
            doing,
            what,
            source: Box::new(source),
        }
    }
}

/// Who applies what tests make.
fn apply_params() -> PatchParams {
    PatchParams::apply("mainstay-tests").force()
}

/// What opens the cluster's own store.
fn store_credentials() -> Value {
    json!({"region": "us-east-1", "accessKeyID": S3_KEY_ID, "secretAccessKey": S3_SECRET})
}

/// A condition of an Etcd, if it has been told.
pub fn find_condition(etcd: &Etcd, type_: &ConditionType) -> Option<Condition> {
    let conditions = etcd.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == *type_).cloned()
}

/// Whether the controller has done what the spec asks, and says that all of it is well.
fn is_settled(etcd: &Etcd) -> bool {
    let Some(status) = &etcd.status else {
        return false;
    };
    let is_done = status
        .last_operation
        .as_ref()
        .is_some_and(|last| last.state == OperationState::Succeeded);
    let holds = |type_: ConditionType| {
        find_condition(etcd, &type_).is_some_and(|one| one.status == ConditionStatus::True)
    };
    let is_well = etcd.spec.replicas == 0
        || holds(ConditionType::AllMembersReady) && holds(ConditionType::AllMembersUpdated);
    is_done && is_well && status.observed_generation == etcd.metadata.generation
}
