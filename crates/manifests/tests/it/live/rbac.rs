//! The chart's roles on a real API server: the controller can do everything that it needs and nothing else.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams,
};
use kube::core::{ApiResource, GroupVersionKind, ObjectMeta, Resource};
use kube::{Client, Error};
use mainstay_crds::{Etcd, EtcdSpec};
use mainstay_manifests::{ManifestObject, Manifests};
use mainstay_testkit::ApiServer;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::chart::{helm_binaries, render_chart};
use crate::support::{render_etcd, render_jobs, store_spec};
use mainstay_manifests::RenderInput;

pub(super) const SERVICE_ACCOUNT: &str = "system:serviceaccount:garden:etcd-mainstay";

/// An API server with the roles of the chart, and a client with the permissions of the controller.
pub(super) async fn install_roles(values: &[&str]) -> (ApiServer, Client) {
    let server = ApiServer::start().await;
    let definitions = mainstay_crds::crd::all_crds();
    server.create_crds(definitions.map(|known| known.crd)).await;
    let admin = server.client().await;
    for name in ["garden", "shoot", "other"] {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        create_object(&admin, &namespace).await;
    }
    for object in render_chart(&helm_binaries()[0], values).unwrap() {
        let kind = object["kind"].as_str().unwrap();
        if kind.contains("Role") {
            create_object(&admin, &object).await;
        }
    }
    let controller = server.client_as(SERVICE_ACCOUNT).await;
    wait_for_roles(&controller).await;
    (server, controller)
}

/// The API server enforces new roles after a short delay.
async fn wait_for_roles(controller: &Client) {
    let (etcds, leases) = (
        namespaced_api::<Etcd>(controller, "shoot"),
        namespaced_api::<Lease>(controller, "garden"),
    );
    let deadline = Instant::now() + Duration::from_mins(1);
    while etcds.list(&ListParams::default()).await.is_err()
        || leases.get_opt("druid-leader-election").await.is_err()
    {
        assert!(Instant::now() < deadline, "roles are not effective");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Creates any object.
async fn create_object(client: &Client, object: &Value) {
    let text = |key: &str| object[key].as_str().unwrap();
    let (group, version) = text("apiVersion")
        .split_once('/')
        .unwrap_or(("", text("apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")));
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let created = api.create(&PostParams::default(), &object).await;
    created.unwrap_or_else(|error| panic!("create {}: {error}", resource.kind));
}

/// Creates an Etcd as its author does.
pub(super) async fn create_etcd(server: &ApiServer, namespace: &str) -> Etcd {
    let mut etcd = Etcd::new("etcd-main", EtcdSpec::default());
    etcd.metadata.namespace = Some(namespace.into());
    etcd.spec.replicas = 3;
    etcd.spec
        .labels
        .insert("app".into(), "control-plane".into());
    etcd.spec.backup.store = Some(store_spec("aws"));
    let api = Api::<Etcd>::namespaced(server.client().await, namespace);
    api.create(&PostParams::default(), &etcd).await.unwrap()
}

/// All objects and Jobs of an Etcd.
fn render_all_objects(etcd: &Etcd) -> Vec<ManifestObject> {
    let manifests: Manifests = render_etcd(etcd);
    let mut objects = manifests.to_objects().unwrap();
    let jobs = render_jobs(etcd, &RenderInput::from_etcd(etcd));
    objects.extend(
        jobs.iter()
            .map(|job| ManifestObject::from_typed(job).unwrap()),
    );
    objects
}

fn is_forbidden<T: std::fmt::Debug>(answer: Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Api(status)) if status.code == 403)
}

fn namespaced_api<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}

/// Applies, reads, lists and deletes all objects of an Etcd as the controller does.
async fn exercise_object_lifecycle(controller: &Client, etcd: &Etcd, namespace: &str) {
    let objects = render_all_objects(etcd);
    assert!(objects.len() > 12, "{}", objects.len());
    for ManifestObject { resource, object } in &objects {
        let api: Api<DynamicObject> = Api::namespaced_with(controller.clone(), namespace, resource);
        let name = object.metadata.name.as_deref().unwrap();
        let params = PatchParams::apply("etcd-mainstay").force();
        // Twice: the first creates, the second patches.
        for _ in 0..2 {
            let applied = api.patch(name, &params, &Patch::Apply(object)).await;
            applied.unwrap_or_else(|error| panic!("apply {} {name}: {error}", resource.kind));
        }
        api.get(name).await.unwrap();
        api.list(&ListParams::default()).await.unwrap();
    }
    for ManifestObject { resource, object } in objects.iter().rev() {
        let api: Api<DynamicObject> = Api::namespaced_with(controller.clone(), namespace, resource);
        let name = object.metadata.name.as_deref().unwrap();
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Asserts what an attacker with the permissions of the controller cannot do.
async fn assert_limited_permissions(controller: &Client, namespace: &str) {
    let list = ListParams::default().limit(1);
    let secrets = namespaced_api::<Secret>(controller, namespace);
    assert!(is_forbidden(secrets.list(&list).await));
    assert!(is_forbidden(
        secrets
            .create(&PostParams::default(), &Secret::default())
            .await
    ));
    assert!(is_forbidden(
        secrets.delete("any", &DeleteParams::default()).await
    ));
    let pods = namespaced_api::<Pod>(controller, namespace);
    assert!(is_forbidden(
        pods.create(&PostParams::default(), &Pod::default()).await
    ));
    assert!(is_forbidden(
        Api::<Node>::all(controller.clone()).list(&list).await
    ));
    let etcds = namespaced_api::<Etcd>(controller, namespace);
    assert!(is_forbidden(
        etcds.delete("etcd-main", &DeleteParams::default()).await
    ));
    // The API server rejects a role with a permission that its creator does not have.
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "thief", "namespace": namespace},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}],
    });
    let roles = namespaced_api::<k8s_openapi::api::rbac::v1::Role>(controller, namespace);
    let role = serde_json::from_value(role).unwrap();
    assert!(is_forbidden(
        roles.create(&PostParams::default(), &role).await
    ));
}

#[tokio::test]
async fn controller_manages_its_objects_in_every_namespace_and_no_others() {
    let (server, controller) = install_roles(&[]).await;
    let etcd = create_etcd(&server, "shoot").await;
    exercise_object_lifecycle(&controller, &etcd, "shoot").await;
    assert_limited_permissions(&controller, "shoot").await;
    // Secrets can be read by name.
    let found = namespaced_api::<Secret>(&controller, "shoot")
        .get_opt("named")
        .await;
    assert_eq!(found.unwrap(), None);
    // Logs can be read; 404, because there is no such pod.
    let (pods, whole) = (
        namespaced_api::<Pod>(&controller, "shoot"),
        LogParams::default(),
    );
    let log = pods.logs("of-a-job", &whole).await.unwrap_err();
    assert!(
        matches!(&log, Error::Api(status) if status.code == 404),
        "{log}"
    );
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
    let etcds = namespaced_api::<Etcd>(&controller, "shoot");
    let params = PatchParams::default();
    etcds.patch("etcd-main", &params, &patch).await.unwrap();
    etcds
        .patch_status("etcd-main", &params, &Patch::Merge(json!({"status": {}})))
        .await
        .unwrap();
    Api::<Etcd>::all(controller.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    exercise_leader_election(&controller).await;
}

/// Creates and updates the Lease of the leader election.
async fn exercise_leader_election(controller: &Client) {
    let leases = namespaced_api::<Lease>(controller, "garden");
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some("druid-leader-election".into()),
            ..ObjectMeta::default()
        },
        spec: None,
    };
    leases.create(&PostParams::default(), &lease).await.unwrap();
    let held = Patch::Merge(json!({"spec": {"holderIdentity": "a"}}));
    let params = PatchParams::default();
    leases
        .patch("druid-leader-election", &params, &held)
        .await
        .unwrap();
}

#[tokio::test]
async fn single_namespace_installation_works_only_in_its_namespace() {
    let (server, controller) = install_roles(&[r#"watchNamespace="shoot""#]).await;
    let etcd = create_etcd(&server, "shoot").await;
    exercise_object_lifecycle(&controller, &etcd, "shoot").await;
    assert_limited_permissions(&controller, "shoot").await;
    exercise_leader_election(&controller).await;
    let list = ListParams::default();
    assert!(is_forbidden(
        Api::<Etcd>::all(controller.clone()).list(&list).await
    ));
    assert!(is_forbidden(
        namespaced_api::<ConfigMap>(&controller, "other")
            .list(&list)
            .await
    ));
    assert!(is_forbidden(
        namespaced_api::<Secret>(&controller, "other")
            .get("named")
            .await
    ));
    // In its own namespace it can access only its Lease.
    assert!(is_forbidden(
        namespaced_api::<Secret>(&controller, "garden")
            .get("named")
            .await
    ));
    assert!(is_forbidden(
        namespaced_api::<Lease>(&controller, "garden")
            .get("other")
            .await
    ));
}
