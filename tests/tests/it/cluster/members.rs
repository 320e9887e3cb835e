//! A plain etcd cluster, as anybody would write it, without anything of ours.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ListParams;
use serde_json::{Value, json};
use steward_ids::MemberId;
use steward_testkit::etcd::{hash_kv, keys_at, newest_revision};
use steward_testkit::{HashKv, Kv};
use steward_tests::cluster::attend::volumes::MEMORY;
use steward_tests::cluster::image::{ETCD, etcd_versions};
use steward_tests::cluster::{Load, Programs};

use super::stage::{Stage, eventually};

/// Segments of the log are 64 MiB each and made in advance.
const VOLUME: &str = "512Mi";

/// The name of everything of it.
pub(crate) const NAME: &str = "etcd";

/// A member, as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) address: Ipv4Addr,
}

impl Member {
    /// A client of this very member.
    pub(crate) async fn try_client(&self) -> Result<Client, Error> {
        connect(self.address).await
    }

    async fn client(&self) -> Client {
        let client = self.try_client().await;
        client.unwrap_or_else(|error| panic!("connect to {}: {error}", self.address))
    }

    /// Who it thinks leads; `None` when nobody does, or it does not answer.
    pub(crate) async fn leader(&self) -> Option<MemberId> {
        let mut client = self.try_client().await.ok()?;
        let leader = client.status().await.ok()?.leader();
        (leader != 0).then_some(MemberId(leader))
    }

    /// Its own identity.
    pub(crate) async fn id(&self) -> MemberId {
        let status = self.client().await.status().await.unwrap();
        MemberId(status.header().unwrap().member_id())
    }
}

/// A client at an address, which may be down.
pub(crate) async fn connect(address: Ipv4Addr) -> Result<Client, Error> {
    let options = ConnectOptions::new()
        .with_connect_timeout(Duration::from_secs(2))
        .with_timeout(Duration::from_secs(5));
    Client::connect([format!("http://{address}:2379")], Some(options)).await
}

/// Writes to whichever member answers.
pub(crate) fn load(members: &[Member]) -> Load {
    let addresses: Vec<Ipv4Addr> = members.iter().map(|member| member.address).collect();
    let turn = AtomicUsize::new(0);
    Load::start("/load/", move || {
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        connect(addresses[turn % addresses.len()])
    })
}

/// Starts a cluster of the newest etcd and waits until every member is ready.
pub(crate) async fn start(stage: &Stage, replicas: usize) -> Vec<Member> {
    let programs = Programs::find().unwrap();
    let version = etcd_versions(&programs).await.unwrap().pop().unwrap();
    stage.apply::<Service>(&service()).await;
    let wanted = stateful_set(&stage.namespace, replicas, &version);
    stage.apply::<StatefulSet>(&wanted).await;
    ready(stage, replicas).await
}

/// The members, once there are so many and all are ready.
pub(crate) async fn ready(stage: &Stage, replicas: usize) -> Vec<Member> {
    let pods = stage.api::<Pod>();
    let params = ListParams::default().labels(&format!("app={NAME}"));
    eventually(&format!("{replicas} ready members"), async || {
        let mut pods = pods.list(&params).await.ok()?.items;
        pods.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        let members: Option<Vec<Member>> = pods.iter().map(ready_member).collect();
        members.filter(|members| members.len() == replicas)
    })
    .await
}

fn ready_member(pod: &Pod) -> Option<Member> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let is_ready =
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let address = status.pod_ip.as_ref()?.parse().ok()?;
    is_ready.then_some(Member { address })
}

/// Every member tells the same hash of the same history; returns the keys they have.
pub(crate) async fn assert_agreed(members: &[Member]) -> Vec<Kv> {
    let mut kv = members[0].client().await.kv_client();
    let revision = newest_revision(&mut kv).await;
    let agreed = async || {
        let mut hashes = BTreeSet::new();
        for member in members {
            let mut client = member.try_client().await.ok()?;
            let at = client.status().await.ok()?.header()?.revision();
            if at < revision.0 {
                return None; // it is still being told
            }
            let HashKv { hash, .. } = hash_kv(&mut client, revision).await;
            hashes.insert(hash);
        }
        Some(hashes)
    };
    let hashes = eventually("every member at the same revision", agreed).await;
    assert_eq!(
        hashes.len(),
        1,
        "members disagree about revision {revision}"
    );
    keys_at(&mut kv, revision).await
}

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {"app": NAME},
            "ports": [{"name": "client", "port": 2379}, {"name": "peer", "port": 2380}],
        },
    })
}

fn stateful_set(namespace: &str, replicas: usize, version: &str) -> Value {
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
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 65532},
                    "containers": [{
                        "name": "etcd",
                        "image": format!("{ETCD}:{version}"),
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
                    "storageClassName": MEMORY,
                    "resources": {"requests": {"storage": VOLUME}},
                },
            }],
        },
    })
}
