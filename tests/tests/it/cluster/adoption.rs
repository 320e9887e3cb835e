//! A cluster that etcd-druid made becomes ours.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use steward_crds::Etcd;
use steward_tests::cluster::Programs;
use steward_tests::cluster::attend::volumes::MEMORY;
use steward_tests::cluster::image::{ETCD as IMAGE, etcd_versions};
use steward_tests::cluster::member::{content, content_at};

use super::stage::{ETCD, Stage, assert_kept, on_stage};

const MEMBERS: usize = 3;
/// Nobody acts on an Etcd that has it.
const SUSPENDED: &str = "druid.gardener.cloud/suspend-etcd-spec-reconcile";

fn labels(component: &str) -> Value {
    json!({
        "app.kubernetes.io/managed-by": "etcd-druid",
        "app.kubernetes.io/part-of": ETCD,
        "app.kubernetes.io/component": component,
    })
}

/// The Service by whose name members find each other.
fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": format!("{ETCD}-peer"), "labels": labels("etcd-peer-service")},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {
                "app.kubernetes.io/managed-by": "etcd-druid", "app.kubernetes.io/part-of": ETCD,
            },
            "ports": [{"name": "peer", "port": 2380, "protocol": "TCP"}],
        },
    })
}

/// How a plain etcd is started where etcd-druid keeps its data.
fn command(namespace: &str) -> Vec<String> {
    let peer = |pod: &str| format!("http://{pod}.{ETCD}-peer.{namespace}.svc:2380");
    let all: Vec<String> = (0..MEMBERS)
        .map(|number| format!("{ETCD}-{number}"))
        .map(|pod| format!("{pod}={}", peer(&pod)))
        .collect();
    let own = peer("$(POD_NAME)");
    vec![
        "/bin/etcd".to_owned(),
        "--name=$(POD_NAME)".to_owned(),
        "--data-dir=/var/etcd/data/new.etcd".to_owned(),
        "--listen-client-urls=http://0.0.0.0:2379".to_owned(),
        "--listen-peer-urls=http://0.0.0.0:2380".to_owned(),
        format!("--advertise-client-urls={}", own.replace("2380", "2379")),
        format!("--initial-advertise-peer-urls={own}"),
        format!("--initial-cluster={}", all.join(",")),
        "--initial-cluster-token=etcd-cluster".to_owned(),
    ]
}

/// The pod of a member.
fn pod(namespace: &str, version: &str) -> Value {
    let name = json!({"fieldRef": {"fieldPath": "metadata.name"}});
    json!({
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "fsGroup": 65532},
        "containers": [{
            "name": "etcd",
            "image": format!("{IMAGE}:{version}"),
            "command": command(namespace),
            "env": [{"name": "POD_NAME", "valueFrom": name}],
            "readinessProbe": {"httpGet": {"path": "/health", "port": 2379}, "periodSeconds": 1},
            "volumeMounts": [{"name": ETCD, "mountPath": "/var/etcd/data"}],
        }],
    })
}

/// The StatefulSet as etcd-druid makes it, as far as it matters to data and names; its etcd is the plain one.
fn stateful_set(stage: &Stage, owner: &Etcd, version: &str) -> Value {
    let selector = json!({
        "app.kubernetes.io/managed-by": "etcd-druid", "app.kubernetes.io/part-of": ETCD,
    });
    let claim = json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": MEMORY,
        "resources": {"requests": {"storage": "512Mi"}},
    });
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": ETCD,
            "labels": labels("etcd-statefulset"),
            "ownerReferences": [{
                "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "name": ETCD,
                "uid": owner.uid(), "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "replicas": MEMBERS,
            "serviceName": format!("{ETCD}-peer"),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": labels("etcd-statefulset")},
                "spec": pod(&stage.namespace, version),
            },
            "volumeClaimTemplates": [{"metadata": {"name": ETCD}, "spec": claim}],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_etcd_druid_goes_on_with_its_data_and_its_quorum() {
    on_stage("adopt", async |stage| {
        let programs = Programs::find().unwrap();
        let version = etcd_versions(&programs).await.unwrap().pop().unwrap();
        let etcd = stage.suspended(&stage.spec(3), SUSPENDED).await;
        let owner = etcd.get().await.unwrap();
        stage.apply::<Service>(&service()).await;
        let theirs = stateful_set(stage, &owner, &version);
        let set = stage.apply::<StatefulSet>(&theirs).await;
        let before = etcd.members(MEMBERS).await.unwrap();
        let mut client = before[0].client().await.unwrap();
        for number in 0..200 {
            client
                .put(format!("/theirs/{number}"), "value", None)
                .await
                .unwrap();
        }
        let written = content(&before).await.unwrap();
        let id = before[0].id().await.unwrap();

        etcd.annotate(SUSPENDED, None).await.unwrap();
        let load = etcd.load().await.unwrap();
        let is_new = |member: &_| !before.contains(member);
        let members = etcd.members_that(MEMBERS, is_new).await.unwrap();
        etcd.settled().await.unwrap();
        let more = load.stop().await.unwrap();
        assert_kept(&more, &content(&members).await.unwrap());
        assert_eq!(
            content_at(&members, written.revision).await.unwrap(),
            written
        );
        assert_eq!(
            members[0].id().await.unwrap(),
            id,
            "the same member, on the same volume"
        );
        let now = stage.api::<StatefulSet>().get(ETCD).await.unwrap();
        assert_eq!(now.uid(), set.uid(), "the same StatefulSet");
        etcd.is_backed_up(written.revision).await.unwrap();
    })
    .await;
}
