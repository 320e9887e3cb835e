//! A namespace for one test, with helpers to create objects and wait for states.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, resume_unwind, set_hook};
use std::path::PathBuf;

use futures::FutureExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Resource};
use mainstay_ids::Revision;
use mainstay_tests::cluster::managed_etcd::{self, ManagedEtcd};
use mainstay_tests::cluster::member::{KeySpaceContent, MemberPod, read_key_space};
use mainstay_tests::cluster::{
    AcknowledgedWrites, ClusterComponent, EncryptedConnections, LocalNode, TestCluster, WriteLoad,
    diagnose, eventually,
};
use rand::Rng as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The Etcd of a test.
pub(crate) const ETCD_NAME: &str = "main";

/// The amount by which a recovery raises the revision.
const REVISION_BUMP: i64 = 1_000_000_000;

/// Label of the longest gap of a load in a timeline.
pub(crate) const LONGEST_GAP_LABEL: &str = "was the longest time without an acknowledged write";

/// The namespace of one test.
pub(crate) struct TestNamespace {
    pub(crate) cluster: TestCluster,
    pub(crate) namespace: String,
}

/// The pod security standard that a namespace enforces.
#[derive(Clone, Copy)]
enum PodSecurity {
    /// What our pods need.
    Restricted,
    /// What the pods of etcd-druid need.
    Baseline,
}

/// Runs a test in its own namespace, and deletes the namespace also if the test fails. After a failure, prints the state of
/// the namespace.
pub(crate) async fn with_namespace(name: &str, test: impl AsyncFnOnce(&TestNamespace)) {
    run_in_namespace(find_cluster().await, (name, PodSecurity::Restricted), test).await;
}

/// The same for a test with pods of etcd-druid, which the restricted pod security standard rejects.
pub(crate) async fn with_baseline_namespace(name: &str, test: impl AsyncFnOnce(&TestNamespace)) {
    run_in_namespace(find_cluster().await, (name, PodSecurity::Baseline), test).await;
}

/// The same for a test that needs access to the node.
pub(crate) async fn with_local_namespace(name: &str, test: impl AsyncFnOnce(&TestNamespace)) {
    let cluster = find_cluster().await;
    assert!(
        cluster.node().is_some(),
        "{name} needs the cluster of this machine, but KUBECONFIG points to another one; `cluster filter` skips this test"
    );
    run_in_namespace(cluster, (name, PodSecurity::Restricted), test).await;
}

async fn find_cluster() -> TestCluster {
    let cluster = TestCluster::find().await;
    cluster.unwrap_or_else(|error| panic!("{error}"))
}

async fn run_in_namespace(
    cluster: TestCluster,
    (name, security): (&str, PodSecurity),
    test: impl AsyncFnOnce(&TestNamespace),
) {
    let namespace = format!("{name}-{:05x}", rand::rng().random_range(0..0x10_0000));
    let stage = TestNamespace { cluster, namespace };
    let namespaces = Api::<Namespace>::all(stage.cluster.client());
    let enforced = match security {
        PodSecurity::Restricted => "restricted",
        PodSecurity::Baseline => "baseline",
    };
    let labels = json!({"pod-security.kubernetes.io/enforce": enforced});
    let desired = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": stage.namespace, "labels": labels},
    });
    apply(&namespaces, &desired).await;
    // The message of a failed test says what it waited for; a backtrace does not help.
    set_hook(Box::new(|failed| eprintln!("{failed}")));
    // Boxed: the future is too large for the stack.
    let played = Box::pin(test(&stage));
    let ended = AssertUnwindSafe(played).catch_unwind().await;
    if ended.is_err() {
        // Read before the cleanup, which changes the state; printed in any case.
        let shown = diagnose(&stage.cluster.client(), &stage.namespace).await;
        eprintln!("state of the cluster when {name} failed:\n{shown}");
        stage.restart_components().await;
    }
    let params = DeleteParams::default();
    namespaces.delete(&stage.namespace, &params).await.unwrap();
    if let Err(panic) = ended {
        resume_unwind(panic);
    }
}

async fn apply<K>(api: &Api<K>, desired: &Value) -> K
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let name = desired["metadata"]["name"].as_str().unwrap();
    let params = PatchParams::apply("mainstay-tests").force();
    let applied = api.patch(name, &params, &Patch::Apply(desired)).await;
    applied.unwrap_or_else(|error| panic!("failed to apply {name}: {error}"))
}

/// Security context of a pod that the restricted pod security standard accepts; the user is the one of members.
pub(crate) fn pod_security_context() -> Value {
    json!({"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}})
}

/// The same for a container.
pub(crate) fn container_security_context() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}

impl TestNamespace {
    /// Resources of the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.cluster.client(), &self.namespace)
    }

    /// Starts components again that a failed test may have stopped.
    async fn restart_components(&self) {
        let Some(node) = self.cluster.node() else {
            return; // an external cluster: no component was stopped
        };
        for component in [ClusterComponent::ApiServer, ClusterComponent::Store] {
            if let Err(error) = node.start(component).await {
                eprintln!("{error}");
            }
        }
    }

    /// Applies an object with server-side apply.
    pub(crate) async fn apply<K>(&self, desired: &Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        apply(&self.api::<K>(), desired).await
    }

    /// Creates an Etcd.
    pub(crate) async fn create_etcd(&self, spec: &Value) -> ManagedEtcd {
        let client = self.cluster.client();
        let created = ManagedEtcd::create(client, &self.namespace, ETCD_NAME, spec).await;
        created.unwrap_or_else(|error| panic!("{error}: {error:?}"))
    }

    /// Creates an Etcd with an annotation that suspends its reconciliation.
    pub(crate) async fn create_suspended_etcd(
        &self,
        spec: &Value,
        annotation: &str,
    ) -> ManagedEtcd {
        let client = self.cluster.client();
        let asked = (spec, annotation);
        let created =
            ManagedEtcd::create_suspended(client, &self.namespace, ETCD_NAME, asked).await;
        created.unwrap_or_else(|error| panic!("{error}: {error:?}"))
    }

    /// Creates an Etcd with TLS on all connections.
    pub(crate) async fn create_encrypted_etcd(&self, spec: Value) -> ManagedEtcd {
        let client = self.cluster.client();
        let asked = (spec, EncryptedConnections::ALL);
        let created =
            ManagedEtcd::create_encrypted(client, &self.namespace, ETCD_NAME, asked).await;
        created.unwrap_or_else(|error| panic!("{error}: {error:?}"))
    }

    /// The path of a member's data directory on this machine, whether its pod runs or not.
    pub(crate) async fn member_data_dir(&self, etcd: &ManagedEtcd, member: &MemberPod) -> PathBuf {
        let volume = self.wait_for_volume(&etcd.pvc_name(member)).await;
        let directory = self.local_node().volume_directory(&volume);
        directory.expect("a volume of this node").join("new.etcd")
    }

    /// The spec of an Etcd.
    pub(crate) fn etcd_spec(&self, replicas: i32) -> Value {
        managed_etcd::etcd_spec(&self.namespace, ETCD_NAME, replicas)
    }

    /// Access to the node.
    pub(crate) fn local_node(&self) -> &LocalNode {
        let node = self.cluster.node();
        node.expect("the test must use `with_local_namespace`")
    }

    /// Runs a Job with the toolbox image and waits for its end; a given PVC is mounted at `/data`.
    pub(crate) async fn run_job(&self, name: &str, script: &str, claim: Option<&str>) {
        let volumes = claim
            .map(|claim| json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]));
        let mounts = claim.map(|_| json!([{"name": "data", "mountPath": "/data"}]));
        let job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {"backoffLimit": 0, "template": {"spec": {
                "restartPolicy": "Never",
                "volumes": volumes.unwrap_or_default(),
                "securityContext": pod_security_context(),
                "containers": [{
                    "name": "job",
                    "securityContext": container_security_context(),
                    "image": "toolbox:1",
                    "command": ["/bin/sh", "-euc", script],
                    "volumeMounts": mounts.unwrap_or_default(),
                }],
            }}},
        });
        self.apply::<Job>(&job).await;
        let jobs = self.api::<Job>();
        let what = format!("Job {name} to end");
        let ended = async || {
            let status = jobs.get(name).await.ok()?.status?;
            let has_ended = status.succeeded.is_some() || status.failed.is_some();
            has_ended.then_some(status)
        };
        let status = eventually(&what, ended).await.unwrap();
        assert_eq!(status.succeeded, Some(1), "Job {name} failed: {status:?}");
    }

    /// Waits until a PVC is bound; returns its volume.
    pub(crate) async fn wait_for_volume(&self, claim: &str) -> PersistentVolume {
        let claims = self.api::<PersistentVolumeClaim>();
        let bound = async || claims.get(claim).await.ok()?.spec?.volume_name;
        let what = format!("PVC {claim} to be bound");
        let volume = eventually(&what, bound).await.unwrap();
        let volumes = Api::<PersistentVolume>::all(self.cluster.client());
        volumes.get(&volume).await.unwrap()
    }
}

/// Writes, and waits until every write is in the backup. Returns the content.
pub(crate) async fn write_and_back_up(
    etcd: &ManagedEtcd,
    members: &[MemberPod],
) -> KeySpaceContent {
    let load = etcd.start_load().await.unwrap();
    load.wait_for_writes(200).await.unwrap();
    let written = load.stop().await.unwrap();
    let before = read_key_space(members).await.unwrap();
    assert_no_write_lost(&written, &before);
    etcd.wait_until_backed_up(before.revision).await.unwrap();
    before
}

/// Asserts that `count` members are restored with the same keys and their revisions, at a revision above every one that a
/// client may have read.
pub(crate) async fn assert_recovered(
    etcd: &ManagedEtcd,
    before: &KeySpaceContent,
    (count, is_wanted): (usize, impl Fn(&MemberPod) -> bool),
) {
    let members = etcd.wait_for_members_where(count, is_wanted).await.unwrap();
    etcd.wait_until_settled().await.unwrap();
    let after = read_key_space(&members).await.unwrap();
    assert_eq!(after.keys, before.keys);
    assert!(after.revision > before.revision, "{after}");
}

/// Starts a load; returns it and a revision up to which it is in the backup, while the load continues.
pub(crate) async fn start_backed_up_load(etcd: &ManagedEtcd) -> (WriteLoad, Revision) {
    let load = etcd.start_load().await.unwrap();
    load.wait_for_writes(200).await.unwrap();
    let begun = etcd.backup_revision().await.unwrap_or_default();
    etcd.wait_until_backed_up(begun.next()).await.unwrap();
    let flushed = etcd.backup_revision().await.unwrap();
    (load, flushed)
}

/// Asserts that `count` members are restored with every write that was in the backup before the fault, and with every one
/// acknowledged since the recovery.
pub(crate) async fn assert_resumed(
    etcd: &ManagedEtcd,
    (load, flushed): (WriteLoad, Revision),
    (count, is_wanted): (usize, impl Fn(&MemberPod) -> bool),
) {
    let members = etcd.wait_for_members_where(count, is_wanted).await.unwrap();
    etcd.wait_until_settled().await.unwrap();
    load.wait_for_writes(50).await.unwrap();
    let written = load.stop().await.unwrap();
    let after = read_key_space(&members).await.unwrap();
    let raised = Revision(flushed.0 + REVISION_BUMP);
    assert!(
        after.revision > raised,
        "{after}: the revision was not raised"
    );
    let missing = written.missing_outside(&after.keys, flushed, raised);
    assert!(
        missing.is_empty(),
        "writes in the backup are lost: {missing:?}"
    );
}

/// Asserts that every acknowledged write is present, and that there is at least one.
pub(crate) fn assert_no_write_lost(written: &AcknowledgedWrites, content: &KeySpaceContent) {
    let newest = written.newest_revision().expect("an acknowledged write");
    let missing = written.missing_from(&content.keys, newest);
    assert!(
        missing.is_empty(),
        "acknowledged writes are lost: {missing:?}"
    );
}
