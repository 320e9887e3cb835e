//! Creates an Etcd as etcd-druid does: objects with its names, labels and flags. Two programs differ: a plain etcd instead of
//! etcd-wrapper, and mainstay-sidecar, which takes the same flags, instead of etcd-backup-restore.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::PostParams;
use kube::{Resource, ResourceExt as _};
use mainstay_crds::Etcd;
use mainstay_tests::cluster::image::{DEV_TAG, ETCD_IMAGE as IMAGE};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::harness::{ETCD_NAME, TestNamespace};

/// Number of members.
pub(crate) const MEMBERS: usize = 3;
/// Field manager of etcd-druid.
const FIELD_MANAGER: &str = "etcd-druid";
const ROLE_NAME: &str = "druid.gardener.cloud:etcd:main";

/// Creates all objects of an Etcd, in etcd-druid's order.
pub(crate) async fn create_druid_etcd(
    test_namespace: &TestNamespace,
    owner: &Etcd,
    version: &str,
) -> StatefulSet {
    let druid = DruidObjects {
        test_namespace,
        owner,
    };
    druid.create_rbac().await;
    druid.create_leases().await;
    let budget =
        json!({"spec": {"minAvailable": MEMBERS / 2 + 1, "selector": {"matchLabels": selector()}}});
    druid
        .create::<PodDisruptionBudget>((ETCD_NAME, "etcd-pdb"), budget)
        .await;
    druid.create_services().await;
    let data = json!({"data": {"etcd.conf.yaml": etcd_configuration(&test_namespace.namespace)}});
    druid
        .create::<ConfigMap>(("main-config", "etcd-configmap"), data)
        .await;
    let spec = stateful_set_spec(owner, version);
    druid
        .create::<StatefulSet>((ETCD_NAME, "etcd-statefulset"), json!({"spec": spec}))
        .await
}

struct DruidObjects<'a> {
    test_namespace: &'a TestNamespace,
    owner: &'a Etcd,
}

impl DruidObjects<'_> {
    async fn create<K>(&self, (name, component): (&str, &str), mut object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize,
    {
        object["metadata"] = json!({
            "name": name,
            "labels": labels(&name.replace(':', "-"), component),
            "ownerReferences": [{
                "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd", "name": ETCD_NAME,
                "uid": self.owner.uid(), "controller": true, "blockOwnerDeletion": true,
            }],
        });
        let object: K = serde_json::from_value(object).unwrap();
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        self.test_namespace
            .api::<K>()
            .create(&params, &object)
            .await
            .unwrap()
    }

    async fn create_rbac(&self) {
        let account = (ETCD_NAME, "etcd-service-account");
        let mounted = json!({"automountServiceAccountToken": true});
        self.create::<ServiceAccount>(account, mounted).await;
        let all = ["get", "list", "patch", "update", "watch"];
        let rules = json!([
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": all},
            {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": all},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        ]);
        self.create::<Role>((ROLE_NAME, "etcd-role"), json!({"rules": rules}))
            .await;
        let bound = json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE_NAME},
            "subjects": [{
                "kind": "ServiceAccount", "name": ETCD_NAME, "namespace": self.test_namespace.namespace,
            }],
        });
        self.create::<RoleBinding>((ROLE_NAME, "etcd-role-binding"), bound)
            .await;
    }

    /// Empty Leases; the sidecar acquires them.
    async fn create_leases(&self) {
        for number in 0..MEMBERS {
            let name = format!("{ETCD_NAME}-{number}");
            self.create::<Lease>((&name, "etcd-member-lease"), json!({}))
                .await;
        }
        for name in ["main-full-snap", "main-delta-snap"] {
            self.create::<Lease>((name, "etcd-snapshot-lease"), json!({}))
                .await;
        }
    }

    async fn create_services(&self) {
        let mut of_members = selector();
        of_members["app.kubernetes.io/component"] = "etcd-statefulset".into();
        let port = |name: &str, number: u16| json!({"name": name, "port": number, "protocol": "TCP", "targetPort": number});
        let client = json!({
            "type": "ClusterIP",
            "selector": of_members,
            "ports": [port("client", 2379), port("server", 2380), port("backuprestore", 8080)],
        });
        let peer = json!({
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": of_members,
            "ports": [port("peer", 2380)],
        });
        let both = [
            (("main-client", "etcd-client-service"), client),
            (("main-peer", "etcd-peer-service"), peer),
        ];
        for (named, spec) in both {
            self.create::<Service>(named, json!({"spec": spec})).await;
        }
    }
}

fn selector() -> Value {
    json!({"app.kubernetes.io/managed-by": "etcd-druid", "app.kubernetes.io/part-of": ETCD_NAME})
}

fn labels(name: &str, component: &str) -> Value {
    let mut labels = selector();
    labels["app.kubernetes.io/name"] = name.into();
    labels["app.kubernetes.io/component"] = component.into();
    labels
}

fn member_url(pod: &str, namespace: &str, port: u16) -> String {
    format!("http://{pod}.{ETCD_NAME}-peer.{namespace}.svc:{port}")
}

/// Pods and their URLs.
fn member_urls(namespace: &str, port: u16) -> impl Iterator<Item = (String, String)> {
    let pods = (0..MEMBERS).map(|number| format!("{ETCD_NAME}-{number}"));
    pods.map(move |pod| (pod.clone(), member_url(&pod, namespace, port)))
}

fn initial_cluster(namespace: &str) -> String {
    let all: Vec<String> = member_urls(namespace, 2380)
        .map(|(pod, url)| format!("{pod}={url}"))
        .collect();
    all.join(",")
}

/// One configuration for all members; the sidecar selects the values of its member.
fn etcd_configuration(namespace: &str) -> String {
    let advertised = |port| -> Value {
        let all = member_urls(namespace, port).map(|(pod, url)| (pod, json!([url])));
        Value::Object(all.collect())
    };
    // JSON is valid YAML.
    let all = json!({
        "name": "etcd-config",
        "data-dir": "/var/etcd/data/new.etcd",
        "metrics": "basic",
        "snapshot-count": 10000,
        "enable-grpc-gateway": true,
        "quota-backend-bytes": 8_589_934_592_u64,
        "initial-cluster-token": "etcd-cluster",
        "initial-cluster-state": "new",
        "initial-cluster": initial_cluster(namespace),
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "30m",
        "listen-peer-urls": "http://0.0.0.0:2380",
        "listen-client-urls": "http://0.0.0.0:2379",
        "initial-advertise-peer-urls": advertised(2380),
        "advertise-client-urls": advertised(2379),
        "next-cluster-version-compatible": true,
    });
    all.to_string()
}

fn stateful_set_spec(owner: &Etcd, version: &str) -> Value {
    let claim = json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": owner.spec.storage_class,
        "resources": {"requests": {"storage": owner.spec.storage_capacity}},
    });
    let annotations = json!({"checksum/etcd-configmap": "0000"});
    json!({
        "replicas": MEMBERS,
        "serviceName": "main-peer",
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "selector": {"matchLabels": selector()},
        "template": {
            "metadata": {"labels": labels(ETCD_NAME, "etcd-statefulset"), "annotations": annotations},
            "spec": pod_spec(owner, version),
        },
        "volumeClaimTemplates": [{"metadata": {"name": ETCD_NAME}, "spec": claim}],
    })
}

fn pod_spec(owner: &Etcd, version: &str) -> Value {
    let store = owner.spec.backup.store.as_ref().expect("a store");
    let secret = store.secret_ref.as_ref().map(|secret| &secret.name);
    json!({
        "hostAliases": [{"ip": "127.0.0.1", "hostnames": ["main-local"]}],
        "shareProcessNamespace": true,
        "serviceAccountName": ETCD_NAME,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "fsGroupChangePolicy": "OnRootMismatch",
        },
        "containers": [etcd_container(&owner.namespace().unwrap(), version), sidecar_container(owner)],
        "volumes": [
            {"name": "etcd-config-file", "configMap": {"name": "main-config", "defaultMode": 0o640}},
            {"name": "etcd-backup-secret", "secret": {"secretName": secret, "defaultMode": 0o640}},
        ],
    })
}

fn field_ref_env(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

/// etcd-wrapper waits for the sidecar before it starts etcd; the plain etcd starts at once, in the same data directory.
fn etcd_container(namespace: &str, version: &str) -> Value {
    let own = |port| member_url("$(POD_NAME)", namespace, port);
    let command = [
        "/bin/etcd".to_owned(),
        "--name=$(POD_NAME)".to_owned(),
        "--data-dir=/var/etcd/data/new.etcd".to_owned(),
        "--listen-client-urls=http://0.0.0.0:2379".to_owned(),
        "--listen-peer-urls=http://0.0.0.0:2380".to_owned(),
        format!("--advertise-client-urls={}", own(2379)),
        format!("--initial-advertise-peer-urls={}", own(2380)),
        format!("--initial-cluster={}", initial_cluster(namespace)),
        "--initial-cluster-token=etcd-cluster".to_owned(),
    ];
    json!({
        "name": "etcd",
        "image": format!("{IMAGE}:{version}"),
        "command": command,
        "env": [field_ref_env("POD_NAME", "metadata.name")],
        "ports": [
            {"name": "server", "containerPort": 2380}, {"name": "client", "containerPort": 2379},
        ],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 2379}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": false},
        "volumeMounts": [{"name": ETCD_NAME, "mountPath": "/var/etcd/data"}],
    })
}

fn sidecar_container(owner: &Etcd) -> Value {
    let store = owner.spec.backup.store.as_ref().expect("a store");
    let mut args: Vec<String> = SIDECAR_FLAGS.iter().map(ToString::to_string).collect();
    args.push(format!("--store-prefix={}", store.prefix));
    let endpoint = store.endpoint_override.iter();
    args.extend(endpoint.map(|url| format!("--store-endpoint-override={url}")));
    json!({
        "name": "backup-restore",
        "image": format!("mainstay-sidecar:{DEV_TAG}"),
        "args": args,
        "env": [
            field_ref_env("POD_NAME", "metadata.name"),
            field_ref_env("POD_NAMESPACE", "metadata.namespace"),
            {"name": "STORAGE_CONTAINER", "value": store.container},
            {"name": "AWS_APPLICATION_CREDENTIALS", "value": "/var/etcd-backup"},
        ],
        "ports": [{"name": "server", "containerPort": 8080}],
        "securityContext": {"allowPrivilegeEscalation": false},
        "volumeMounts": [
            {"name": ETCD_NAME, "mountPath": "/var/etcd/data"},
            {"name": "etcd-config-file", "mountPath": "/var/etcd/config/"},
            {"name": "etcd-backup-secret", "mountPath": "/var/etcd-backup"},
        ],
    })
}

/// The flags that etcd-druid passes for an Etcd without TLS.
const SIDECAR_FLAGS: [&str; 34] = [
    "server",
    "--server-port=8080",
    "--enable-snapshot-lease-renewal=true",
    "--full-snapshot-lease-name=main-full-snap",
    "--delta-snapshot-lease-name=main-delta-snap",
    "--storage-provider=S3",
    "--schedule=0 */24 * * *",
    "--delta-snapshot-period=5s",
    "--delta-snapshot-memory-limit=104857600",
    "--garbage-collection-policy=Exponential",
    "--garbage-collection-period=12h",
    "--compress-snapshots=true",
    "--compression-policy=gzip",
    "--etcd-snapshot-timeout=15m",
    "--defragmentation-schedule=0 */24 * * *",
    "--etcd-defrag-timeout=15m",
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=30m",
    "--insecure-transport=true",
    "--insecure-skip-tls-verify=true",
    "--endpoints=http://main-local:2379",
    "--service-endpoints=http://main-client:2379",
    "--data-dir=/var/etcd/data/new.etcd",
    "--restoration-temp-snapshots-dir=/var/etcd/data/restoration.temp",
    "--snapstore-temp-directory=/var/etcd/data/temp",
    "--etcd-connection-timeout=5m",
    "--use-etcd-wrapper=true",
    "--enable-member-lease-renewal=true",
    "--k8s-heartbeat-duration=10s",
    "--embedded-etcd-quota-bytes=8589934592",
    "--etcd-connection-timeout-leader-election=5s",
    "--reelection-period=5s",
    "--enable-profiling=false",
    "--delta-snapshot-retention-period=0s",
];
