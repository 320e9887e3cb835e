//! A plain etcd cluster, without any program of this project.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Service;
use mainstay_tests::cluster::image::{ETCD_IMAGE, read_etcd_versions};
use mainstay_tests::cluster::managed_etcd::storage_class;
use mainstay_tests::cluster::member::{MemberPod, connect, wait_for_members};
use mainstay_tests::cluster::{Programs, WriteLoad};
use serde_json::{Value, json};

use super::harness::{TestNamespace, container_security_context, pod_security_context};

/// Room for WAL segments, which etcd preallocates with 64 MiB each.
const VOLUME_SIZE: &str = "512Mi";

/// Name of all its objects.
pub(crate) const NAME: &str = "etcd";

/// Label selector of its pods.
pub(crate) const SELECTOR: &str = "app=etcd";

/// Writes to any member that responds.
pub(crate) fn start_load(members: &[MemberPod]) -> WriteLoad {
    let addresses: Vec<Ipv4Addr> = members.iter().map(|member| member.address).collect();
    let turn = AtomicUsize::new(0);
    WriteLoad::start("/load/", move || {
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        connect(addresses[turn % addresses.len()], None)
    })
}

/// Starts a cluster of the newest etcd and waits until every member is ready.
pub(crate) async fn start_plain_etcd(stage: &TestNamespace, replicas: usize) -> Vec<MemberPod> {
    let programs = Programs::find_etcds().unwrap();
    let version = read_etcd_versions(&programs).await.unwrap().pop().unwrap();
    stage.apply::<Service>(&service_manifest()).await;
    let desired = stateful_set_manifest(&stage.namespace, replicas, &version);
    stage.apply::<StatefulSet>(&desired).await;
    wait_until_ready(stage, replicas).await
}

/// Waits until `count` members are ready; returns them.
pub(crate) async fn wait_until_ready(stage: &TestNamespace, replicas: usize) -> Vec<MemberPod> {
    let found = wait_for_members(&stage.api(), (SELECTOR, None), replicas, |_| true).await;
    found.unwrap()
}

fn service_manifest() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {"app": NAME},
            "ports": [
                {"name": "client", "port": 2379, "protocol": "TCP"},
                {"name": "peer", "port": 2380, "protocol": "TCP"},
            ],
        },
    })
}

fn stateful_set_manifest(namespace: &str, replicas: usize, version: &str) -> Value {
    let peer = |pod: &str| format!("http://{pod}.{NAME}.{namespace}.svc:2380");
    let all: Vec<String> = (0..replicas)
        .map(|number| format!("{NAME}-{number}"))
        .map(|pod| format!("{pod}={}", peer(&pod)))
        .collect();
    let command = [
        "/bin/etcd".to_owned(),
        "--name=$(POD)".to_owned(),
        "--data-dir=/data/etcd".to_owned(),
        "--unsafe-no-fsync".to_owned(),
        "--listen-client-urls=http://0.0.0.0:2379".to_owned(),
        "--listen-peer-urls=http://0.0.0.0:2380".to_owned(),
        "--advertise-client-urls=http://$(ADDRESS):2379".to_owned(),
        format!("--initial-advertise-peer-urls={}", peer("$(POD)")),
        format!("--initial-cluster={}", all.join(",")),
    ];
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": NAME},
        "spec": {
            "replicas": replicas,
            "serviceName": NAME,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": NAME}},
            "template": {
                "metadata": {"labels": {"app": NAME}},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "securityContext": pod_security_context(),
                    "containers": [{
                        "name": "etcd",
                        "securityContext": container_security_context(),
                        "image": format!("{ETCD_IMAGE}:{version}"),
                        "command": command,
                        "env": [field("POD", "metadata.name"), field("ADDRESS", "status.podIP")],
                        "readinessProbe": {
                            "httpGet": {"path": "/health", "port": 2379}, "periodSeconds": 1,
                        },
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": storage_class(),
                    "resources": {"requests": {"storage": VOLUME_SIZE}},
                },
            }],
        },
    })
}
