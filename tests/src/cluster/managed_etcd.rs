//! An `Etcd` in the cluster: creates, changes, observes it and writes to it, as a user does.
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
use mainstay_testkit::paths::env_path;
use serde_json::{Value, json};

use super::addresses::s3_url;
use super::configuration::{S3_KEY_ID, S3_SECRET};
use super::member::{MemberPod, connect, wait_for_members};
use super::node_services::volumes::MEMORY_CLASS;
use super::tls_identity::{EncryptedConnections, TlsIdentity};
use super::up::BUCKET;
use super::wait::{WaitTimeout, eventually};
use super::write_load::WriteLoad;

/// Secret with the credentials of the store.
const CREDENTIALS_SECRET: &str = "backup-store";
/// Key prefix of the load.
const LOAD_PREFIX: &str = "/load/";
/// Room for two preallocated WAL segments and a database.
const VOLUME_SIZE: &str = "512Mi";

/// Why an operation on an Etcd failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagedEtcdError {
    /// The API server rejected a request.
    #[error("failed to {doing} {what}")]
    Api {
        /// The operation.
        doing: &'static str,
        /// The object.
        what: String,
        /// Underlying error.
        source: Box<kube::Error>,
    },
    /// The certificates could not be created.
    #[error("failed to create certificates")]
    Identity(#[source] rcgen::Error),
    /// The expected state was not reached.
    #[error(transparent)]
    Timeout(#[from] WaitTimeout),
}

/// One Etcd.
#[derive(Clone)]
pub struct ManagedEtcd {
    client: Client,
    namespace: String,
    name: String,
    /// Certificates for clients, if the Etcd uses TLS.
    identity: Option<Arc<TlsIdentity>>,
}

/// URL of the store: `MAINSTAY_TEST_STORE_URL`, or the cluster's own S3 server.
pub fn store_url() -> String {
    let named = env_path("MAINSTAY_TEST_STORE_URL");
    named.map_or_else(s3_url, |url| url.display().to_string())
}

/// Storage class: `MAINSTAY_TEST_STORAGE_CLASS`, or the one with volumes of exactly the requested size.
pub fn storage_class() -> String {
    let named = env_path("MAINSTAY_TEST_STORAGE_CLASS");
    named.map_or_else(
        || MEMORY_CLASS.to_owned(),
        |class| class.display().to_string(),
    )
}

/// The spec of an Etcd with a backup.
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
    /// Creates the Etcd and the Secret with the credentials of its store.
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

    /// Creates the Etcd with an annotation that suspends its reconciliation.
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

    /// Sets an annotation; `None` removes it.
    pub async fn annotate(&self, key: &str, value: Option<&str>) -> Result<(), ManagedEtcdError> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let etcds = self.api::<Etcd>();
        let params = PatchParams::default();
        let changed = etcds.patch(&self.name, &params, &patch).await;
        changed.map_err(self.api_error("annotate"))?;
        Ok(())
    }

    /// Creates the Etcd with TLS.
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

    /// Replaces the certificates with new ones from the same CA. From now on clients verify `server_name`, which only the new
    /// certificates have.
    pub async fn renew_certificates(&mut self, server_name: &str) -> Result<(), ManagedEtcdError> {
        if let Some(identity) = &self.identity {
            let renewed = identity.renew(server_name);
            let renewed = Arc::new(renewed.map_err(ManagedEtcdError::Identity)?);
            self.apply_secrets(&renewed.to_secrets()).await?;
            self.identity = Some(renewed);
        }
        Ok(())
    }

    async fn apply_secrets(
        &self,
        all: &[(impl AsRef<str>, Value)],
    ) -> Result<(), ManagedEtcdError> {
        let secrets = self.api::<Secret>();
        for (name, data) in all {
            let name = name.as_ref();
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data,
            });
            let applied = secrets
                .patch(name, &apply_params(), &Patch::Apply(secret))
                .await;
            applied.map_err(self.api_error("apply a Secret of"))?;
        }
        Ok(())
    }

    async fn apply(&self, mut etcd: Value) -> Result<(), ManagedEtcdError> {
        etcd["apiVersion"] = "druid.gardener.cloud/v1alpha1".into();
        etcd["kind"] = "Etcd".into();
        etcd["metadata"]["name"] = self.name.clone().into();
        let etcds = self.api::<Etcd>();
        let applied = etcds
            .patch(&self.name, &apply_params(), &Patch::Apply(etcd))
            .await;
        applied.map_err(self.api_error("apply"))?;
        Ok(())
    }

    /// Changes the spec with a merge patch.
    pub async fn patch_spec(&self, spec: Value) -> Result<(), ManagedEtcdError> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let changed = self.api::<Etcd>();
        let changed = changed
            .patch(&self.name, &PatchParams::default(), &patch)
            .await;
        changed.map_err(self.api_error("change"))?;
        Ok(())
    }

    /// Deletes the Etcd and waits until it and its pods are gone.
    pub async fn delete(&self) -> Result<(), ManagedEtcdError> {
        let etcds = self.api::<Etcd>();
        let deleted = etcds.delete(&self.name, &DeleteParams::default()).await;
        deleted.map_err(self.api_error("delete"))?;
        let is_gone = async || {
            let is_left = etcds.get_opt(&self.name).await.ok()?.is_some();
            (!is_left && self.list_pods().await.ok()?.is_empty()).then_some(())
        };
        Ok(eventually("the Etcd and its pods to be deleted", is_gone).await?)
    }

    /// Reads the Etcd.
    pub async fn get(&self) -> Result<Etcd, ManagedEtcdError> {
        let etcd = self.api::<Etcd>().get(&self.name).await;
        etcd.map_err(self.api_error("read"))
    }

    /// Waits until the current spec is reconciled and all conditions are healthy.
    pub async fn wait_until_settled(&self) -> Result<Etcd, ManagedEtcdError> {
        let what = format!("Etcd {} to be reconciled and healthy", self.name);
        let settled = async || self.get().await.ok().filter(is_settled);
        Ok(eventually(&what, settled).await?)
    }

    /// Waits until `count` members are ready; returns them by name.
    pub async fn wait_for_members(&self, count: usize) -> Result<Vec<MemberPod>, WaitTimeout> {
        self.wait_for_members_where(count, |_| true).await
    }

    /// Like `members`, with a condition on each member.
    pub async fn wait_for_members_where(
        &self,
        count: usize,
        is_wanted: impl Fn(&MemberPod) -> bool,
    ) -> Result<Vec<MemberPod>, WaitTimeout> {
        let whom = (&*self.selector(), self.identity.as_ref());
        wait_for_members(&self.api(), whom, count, is_wanted).await
    }

    /// Label selector of the pods.
    pub fn selector(&self) -> String {
        let name = &self.name;
        format!("app.kubernetes.io/part-of={name},app.kubernetes.io/component=etcd-statefulset")
    }

    /// The pods, in any state.
    pub async fn list_pods(&self) -> Result<Vec<Pod>, ManagedEtcdError> {
        let params = ListParams::default().labels(&self.selector());
        let pods = self.api::<Pod>().list(&params).await;
        Ok(pods.map_err(self.api_error("list the pods of"))?.items)
    }

    /// Name of a member's PVC.
    pub fn pvc_name(&self, member: &MemberPod) -> String {
        format!("{}-{}", self.name, member.pod)
    }

    /// Deletes a member's PVC and its pod. Kubernetes deletes the volume when the pod is gone.
    pub async fn delete_volume(&self, member: &MemberPod) -> Result<(), ManagedEtcdError> {
        let params = DeleteParams::default();
        let claims = self.api::<PersistentVolumeClaim>();
        let deleted = claims.delete(&self.pvc_name(member), &params).await;
        deleted.map_err(self.api_error("delete a PVC of"))?;
        self.kill_pod(member).await
    }

    /// Deletes a member's pod without a grace period.
    pub async fn kill_pod(&self, member: &MemberPod) -> Result<(), ManagedEtcdError> {
        let params = DeleteParams::default().grace_period(0);
        let deleted = self.api::<Pod>().delete(&member.pod, &params).await;
        deleted.map_err(self.api_error("delete a pod of"))?;
        Ok(())
    }

    /// Writes through the client Service until stopped.
    pub async fn start_load(&self) -> Result<WriteLoad, ManagedEtcdError> {
        self.start_load_paced(None).await
    }

    /// Like `load`, without a pause between two writes.
    pub async fn start_unpaced_load(&self) -> Result<WriteLoad, ManagedEtcdError> {
        self.start_load_paced(Some(Duration::ZERO)).await
    }

    async fn start_load_paced(
        &self,
        pace: Option<Duration>,
    ) -> Result<WriteLoad, ManagedEtcdError> {
        let services = self.api::<Service>();
        let name = format!("{}-client", self.name);
        let address = async || -> Option<Ipv4Addr> {
            let service = services.get(&name).await.ok()?;
            service.spec?.cluster_ip?.parse().ok()
        };
        let address = eventually("the client Service to have an address", address).await?;
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

    /// Waits until the controller reports data loss.
    pub async fn wait_for_recovery_required(&self) -> Result<Condition, WaitTimeout> {
        let lost = async || {
            let reported =
                find_condition(&self.get().await.ok()?, &ConditionType::RecoveryRequired)?;
            (reported.status == ConditionStatus::True).then_some(reported)
        };
        eventually("data loss to be reported", lost).await
    }

    /// Waits until the controller requests approval of a recovery, and approves it. Returns the controller's message.
    pub async fn approve_recovery(&self) -> Result<String, ManagedEtcdError> {
        let asked = async || {
            let recovery = self.get().await.ok()?.status?.mainstay?.recovery?;
            (recovery.phase == RecoveryPhase::AwaitingApproval).then_some(recovery)
        };
        let recovery = eventually("a recovery to await approval", asked).await?;
        self.annotate(APPROVE_RECOVERY, Some(&recovery.id)).await?;
        Ok(recovery.message)
    }

    /// Waits until a restore drill failed, or reached this revision and was compared with etcd.
    pub async fn wait_for_drill(&self, revision: Revision) -> Result<DrillStatus, WaitTimeout> {
        let drilled = async || {
            let drill = self.get().await.ok()?.status?.mainstay?.restore_drill?;
            let reached = drill.revision.is_some_and(|reached| reached >= revision.0);
            let is_compared = drill.message.contains("content equals etcd's");
            (!drill.succeeded || reached && is_compared).then_some(drill)
        };
        eventually("a restore drill", drilled).await
    }

    /// Waits until the backup contains a revision.
    pub async fn wait_until_backed_up(&self, revision: Revision) -> Result<(), WaitTimeout> {
        let is_there = async || (self.backup_revision().await? >= revision).then_some(());
        eventually(&format!("a backup of revision {revision}"), is_there).await
    }

    /// The newest revision of the backup, read from the snapshot Leases.
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

/// Field manager of the tests.
fn apply_params() -> PatchParams {
    PatchParams::apply("mainstay-tests").force()
}

/// Credentials of the cluster's own store.
fn store_credentials() -> Value {
    json!({"region": "us-east-1", "accessKeyID": S3_KEY_ID, "secretAccessKey": S3_SECRET})
}

/// A condition of an Etcd; `None` if it is not published yet.
pub fn find_condition(etcd: &Etcd, type_: &ConditionType) -> Option<Condition> {
    let conditions = etcd.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == *type_).cloned()
}

/// Whether the current spec is reconciled and all conditions are healthy.
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
