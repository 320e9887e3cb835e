//! The API server accepts our custom resources in every kind of write.

use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use mainstay_crds::{Etcd, EtcdOpsTask, crd};
use mainstay_testkit::ApiServer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

/// A server with the CRDs, a client and a namespace.
async fn start_server() -> (ApiServer, Client, String) {
    let server = ApiServer::start().await;
    let definitions = crd::all_crds();
    server.create_crds(definitions.map(|known| known.crd)).await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    (server, client, namespace)
}

fn etcd_json() -> Value {
    json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "Etcd",
        "metadata": {"name": "main", "labels": {"made": "by-create"}},
        "spec": {
            "selector": {"matchLabels": {"app": "etcd"}},
            "labels": {"app": "etcd"},
            "replicas": 3,
            "storageCapacity": "10Gi",
            "etcd": {"quota": "8Gi", "clientPort": 2379},
            "backup": {},
            "sharedConfig": {},
        },
    })
}

fn task_json() -> Value {
    json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "EtcdOpsTask",
        "metadata": {"name": "snapshot", "labels": {"made": "by-create"}},
        "spec": {"etcdName": "main", "config": {"onDemandSnapshot": {"type": "full"}}},
    })
}

/// Creates, replaces, patches and applies one resource, then applies its status.
async fn exercise_all_writes<K>(resources: Api<K>, resource: Value, status: Value)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let label = |resource: &K| resource.meta().labels.clone().unwrap()["made"].clone();
    let name = resource["metadata"]["name"].as_str().unwrap().to_owned();

    let typed: K = serde_json::from_value(resource.clone()).unwrap();
    let post = PostParams::default();
    let mut made = resources.create(&post, &typed).await.unwrap();
    assert_eq!(label(&made), "by-create");

    let labels = made.meta_mut().labels.as_mut().unwrap();
    labels.insert("made".to_owned(), "by-update".to_owned());
    let made = resources.replace(&name, &post, &made).await.unwrap();
    assert_eq!(label(&made), "by-update");

    let change = Patch::Merge(json!({"metadata": {"labels": {"made": "by-patch"}}}));
    let params = PatchParams::default();
    let made = resources.patch(&name, &params, &change).await.unwrap();
    assert_eq!(label(&made), "by-patch");

    let mut desired = resource;
    desired["metadata"]["labels"]["made"] = json!("by-apply");
    let params = PatchParams::apply("tests").force();
    let applied = Patch::Apply(&desired);
    let made = resources.patch(&name, &params, &applied).await.unwrap();
    assert_eq!(label(&made), "by-apply");

    let identity = json!({"name": name});
    let desired = json!({
        "apiVersion": desired["apiVersion"], "kind": desired["kind"], "metadata": identity, "status": status,
    });
    let applied = Patch::Apply(&desired);
    let made = resources.patch_status(&name, &params, &applied).await;
    let stored = serde_json::to_value(made.unwrap()).unwrap();
    for (field, value) in status.as_object().unwrap() {
        assert_eq!(stored["status"][field], *value);
    }
    assert_eq!(stored["metadata"]["labels"]["made"], "by-apply");
}

#[tokio::test]
async fn etcd_resource_accepts_every_kind_of_write() {
    let (_server, client, namespace) = start_server().await;
    let status = json!({"replicas": 3, "readyReplicas": 2, "ready": false});
    let api = Api::<Etcd>::namespaced(client, &namespace);
    Box::pin(exercise_all_writes(api, etcd_json(), status)).await;
}

#[tokio::test]
async fn ops_task_resource_accepts_every_kind_of_write() {
    let (_server, client, namespace) = start_server().await;
    let status = json!({"state": "InProgress", "startedAt": "2026-01-02T03:04:05Z"});
    exercise_all_writes(
        Api::<EtcdOpsTask>::namespaced(client, &namespace),
        task_json(),
        status,
    )
    .await;
}
