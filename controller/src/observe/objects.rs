//! What the stores hold of one cluster, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, PersistentVolumeClaim, Pod, PodSpec};
use kube::{Api, Client, ResourceExt};
use mainstay_coordination::annotation::PEER_TLS;
use mainstay_crds::Etcd;
use mainstay_crds::tls::PeerTlsConfig;
use mainstay_manifests::tls::{backup_tls_of, client_tls_of, peer_tls_of};
use mainstay_manifests::{ETCD_CONTAINER, INIT_CONTAINER, Names, SIDECAR_CONTAINER, quantity};
use mainstay_telemetry::Chain;
use tracing::debug;

use super::verdict::{self, Said};
use super::{
    Authorities, Finding, Held, Observation, Ordinal, PeerStage, SeenClaim, SeenLease, SeenPod,
    SeenSet, SetCounts, SnapshotLease, Strategy, Talks,
};
use crate::act::marks::{APPLIED, NOTED_SIZE, PEER_STAGE};
use crate::caches::Stores;
use crate::caches::packed::get;
use crate::validate::{MOST_MEMBERS, members};

/// Which revision of the template a pod was made from.
const REVISION_LABEL: &str = "controller-revision-hash";
/// How far beyond the members somebody expects, others are looked for.
const BEYOND: u32 = 8;
/// Somebody may scale a StatefulSet to any number; what is beyond this is taken back like what is just below.
const MOST_SEEN: u32 = MOST_MEMBERS + 1;

/// What the stores hold of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// As plain data; etcd itself was not asked.
    pub observation: Observation,
    /// The StatefulSet as it is.
    pub stateful_set: Option<Arc<StatefulSet>>,
    /// The certificates members have now.
    pub peer_tls: Option<PeerTlsConfig>,
    /// The directory of the node the secret of a `Local` store names.
    pub local_store_root: Option<String>,
    /// The authorities members would start with.
    pub authorities: Authorities,
}

/// Looks into the stores.
pub fn objects(stores: &Stores, etcd: &Etcd) -> Objects {
    let names = Names::of(etcd);
    let set = get(
        &stores.stateful_sets,
        &names.stateful_set(),
        names.namespace,
    );
    let config = get(&stores.config_maps, &names.config_map(), names.namespace);
    let wanted = members(etcd);
    let present = set.as_ref().map_or(0, replicas);
    let noted = set.as_ref().and_then(noted_size).unwrap_or_default();
    let limit = wanted.max(present).max(noted).saturating_add(BEYOND);
    let each = || (0..limit).map(Ordinal);
    let lease = |name: &str| get(&stores.leases, name, names.namespace);
    let observation = Observation {
        set: set.as_ref().map(seen_set),
        pods: each()
            .filter_map(|n| {
                Some((
                    n,
                    seen_pod(&get(&stores.pods, &names.pod(n.0), names.namespace)?),
                ))
            })
            .collect(),
        claims: each()
            .filter_map(|n| {
                Some((
                    n,
                    seen_claim(&get(
                        &stores.claims,
                        &names.volume_claim(n.0),
                        names.namespace,
                    )?),
                ))
            })
            .collect(),
        leases: each()
            .filter_map(|n| Some((n, seen_lease(&lease(&names.member(n.0))?))))
            .collect::<BTreeMap<_, _>>(),
        full_snapshot: lease(&names.full_snapshot_lease()).map(|lease| snapshot_lease(&lease)),
        delta_snapshot: lease(&names.delta_snapshot_lease()).map(|lease| snapshot_lease(&lease)),
        recovery: super::recovery::seen(stores, etcd, limit, present == 0),
        upkeep: super::upkeep::seen(stores, etcd),
        ..Observation::default()
    };
    let peer_tls = set.as_ref().and_then(|set| {
        let nothing = ConfigMap::default();
        peer_tls_of(set, config.as_ref().unwrap_or(&nothing))
    });
    Objects {
        observation,
        stateful_set: set.map(Arc::new),
        peer_tls,
        local_store_root: None,
        authorities: Authorities::None,
    }
}

/// A claim may be missing from the store because it is gone, or because somebody took the label off by which it is watched.
/// Where that matters, the API server is asked. What it does not answer is not taken for gone.
pub async fn confirm_missing_claims(client: &Client, etcd: &Etcd, seen: &mut Observation) {
    // Whoever may be lost, and whoever may survive it.
    let is_unwell = seen.pods.values().any(|pod| !pod.is_ready);
    let unwell = seen.pods.keys().filter(|_| is_unwell).copied();
    // What the members of a cluster that is made anew had must not come up beside it.
    let size = seen.recovery.open().map_or(0, |incident| incident.size);
    let written = (0..size.min(MOST_SEEN)).map(Ordinal);
    let matters: BTreeSet<Ordinal> = unwell.chain(written).collect();
    confirm_claims(client, etcd, seen, matters).await;
}

/// Asks for those of these claims that are not seen.
pub async fn confirm_claims(
    client: &Client,
    etcd: &Etcd,
    seen: &mut Observation,
    of: impl IntoIterator<Item = Ordinal>,
) {
    let names = Names::of(etcd);
    let missing = of
        .into_iter()
        .filter(|ordinal| !seen.claims.contains_key(ordinal));
    let missing: Vec<Ordinal> = missing.collect();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), names.namespace);
    for ordinal in missing {
        match claims.get_opt(&names.volume_claim(ordinal.0)).await {
            Ok(None) => {}
            Ok(Some(claim)) => {
                seen.claims.insert(ordinal, seen_claim(&claim));
            }
            Err(error) => {
                debug!(error = %Chain(&error), "nobody knows whether a volume claim is there");
                seen.claims.insert(ordinal, SeenClaim::default());
            }
        }
    }
}

fn replicas(set: &StatefulSet) -> u32 {
    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
    replicas
        .and_then(|replicas| u32::try_from(replicas).ok())
        .unwrap_or_default()
        .min(MOST_SEEN)
}

fn noted_size(set: &StatefulSet) -> Option<u32> {
    let noted: u32 = set.annotations().get(NOTED_SIZE)?.parse().ok()?;
    Some(noted.min(MOST_SEEN))
}

fn seen_set(set: &StatefulSet) -> SeenSet {
    let spec = set.spec.as_ref();
    let status = set.status.as_ref();
    let pod = spec.and_then(|spec| spec.template.spec.as_ref());
    let etcd = pod.and_then(|pod| pod.containers.iter().find(|c| c.name == ETCD_CONTAINER));
    let claim = spec.and_then(|spec| spec.volume_claim_templates.as_ref()?.first()?.spec.as_ref());
    let size = claim.and_then(|claim| claim.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let strategy = spec.and_then(|spec| spec.update_strategy.as_ref()?.type_.as_deref());
    let generation = set.metadata.generation;
    let noted_stage = set
        .annotations()
        .get(PEER_STAGE)
        .and_then(|word| PeerStage::parse(word));
    let has_certificates = peer_tls_of(set, &ConfigMap::default()).is_some();
    SeenSet {
        uid: set.metadata.uid.clone().unwrap_or_default(),
        resource_version: set.metadata.resource_version.clone().unwrap_or_default(),
        is_deleting: set.metadata.deletion_timestamp.is_some(),
        is_observed: status.is_some_and(|status| status.observed_generation >= generation),
        replicas: replicas(set),
        strategy: if strategy == Some("OnDelete") {
            Strategy::OnDelete
        } else {
            Strategy::Rolling
        },
        is_ours: set.annotations().contains_key(APPLIED),
        update_revision: status.and_then(|status| status.update_revision.clone()),
        etcd_image: etcd.and_then(|container| container.image.clone()),
        storage_bytes: size.and_then(|size| quantity::bytes(size).ok()),
        peer_stage: noted_stage.unwrap_or(if has_certificates {
            PeerStage::On
        } else {
            PeerStage::Off
        }),
        noted_size: noted_size(set),
        counts: SetCounts {
            current: status.map_or(0, |status| status.replicas),
            ready: status
                .and_then(|status| status.ready_replicas)
                .unwrap_or_default(),
        },
    }
}

fn seen_pod(pod: &Pod) -> SeenPod {
    let status = pod.status.as_ref();
    let holds = |type_: &str| {
        let conditions = status.and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    let spec = pod.spec.as_ref();
    let etcd = spec.and_then(|spec| spec.containers.iter().find(|c| c.name == ETCD_CONTAINER));
    let said = said(pod);
    let reaches = said.as_ref().and_then(|said| said.reaches);
    let (finding, words) = if holds("Initialized") {
        (Some(Finding::Good), None)
    } else {
        said.map(|said| (said.finding, said.words)).unzip()
    };
    SeenPod {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        revision: pod.labels().get(REVISION_LABEL).cloned(),
        is_ready: holds("Ready"),
        has_ready_containers: holds("ContainersReady"),
        is_deleting: pod.metadata.deletion_timestamp.is_some(),
        created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        address: status
            .and_then(|status| status.pod_ip.clone())
            .filter(|address| !address.is_empty()),
        etcd_image: etcd.and_then(|container| container.image.clone()),
        finding,
        words: words.flatten(),
        reaches,
        crashes: crashes(pod).unwrap_or_default(),
        talks: Talks {
            client_tls: spec.and_then(client_tls_of),
            backup_tls: spec.and_then(backup_tls_of),
            client_port: spec.and_then(|spec| port_of(spec, ETCD_CONTAINER, "client")),
            backup_port: spec.and_then(|spec| port_of(spec, SIDECAR_CONTAINER, "server")),
        },
    }
}

/// A port of a container by its name.
fn port_of(pod: &PodSpec, container: &str, name: &str) -> Option<u16> {
    let container = pod.containers.iter().find(|one| one.name == container)?;
    let mut ports = container.ports.iter().flatten();
    let port = ports.find(|port| port.name.as_deref() == Some(name))?;
    u16::try_from(port.container_port).ok()
}

/// What the init container said when it last ended.
fn said(pod: &Pod) -> Option<Said> {
    let status = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let init: &ContainerStatus = status
        .iter()
        .find(|container| container.name == INIT_CONTAINER)?;
    let ended = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
        state.as_ref()?.terminated.as_ref()?.message.clone()
    };
    let words = ended(&init.state).or_else(|| ended(&init.last_state))?;
    verdict::said(&words)
}

/// How often etcd has ended, when the kubelet has begun to wait before it starts it again.
fn crashes(pod: &Pod) -> Option<u32> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?;
    let etcd = status.iter().find(|one| one.name == ETCD_CONTAINER)?;
    let waiting = etcd.state.as_ref()?.waiting.as_ref()?;
    let is_loop = waiting.reason.as_deref() == Some("CrashLoopBackOff");
    is_loop.then(|| u32::try_from(etcd.restart_count).unwrap_or_default())
}

fn seen_claim(claim: &PersistentVolumeClaim) -> SeenClaim {
    let status = claim.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let requested = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let capacity = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let complaint = conditions.into_iter().flatten().find(|condition| {
        matches!(
            condition.type_.as_str(),
            "ControllerResizeError" | "NodeResizeError"
        ) && condition.status == "True"
    });
    SeenClaim {
        uid: claim.metadata.uid.clone().unwrap_or_default(),
        is_deleting: claim.metadata.deletion_timestamp.is_some(),
        is_bound: phase == Some("Bound"),
        is_lost: phase == Some("Lost"),
        requested_bytes: requested.and_then(|size| quantity::bytes(size).ok()),
        capacity_bytes: capacity.and_then(|size| quantity::bytes(size).ok()),
        complaint: complaint.and_then(|condition| condition.message.clone()),
    }
}

fn seen_lease(lease: &Lease) -> SeenLease {
    let spec = lease.spec.as_ref();
    SeenLease {
        held: spec.and_then(|spec| Held::parse(spec.holder_identity.as_deref()?)),
        renewed: spec
            .and_then(|spec| spec.renew_time.as_ref())
            .map(|time| time.0),
        peer_tls: lease
            .annotations()
            .get(PEER_TLS)
            .and_then(|text| text.parse().ok()),
    }
}

fn snapshot_lease(lease: &Lease) -> SnapshotLease {
    let spec = lease.spec.as_ref();
    SnapshotLease {
        created: lease
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0),
        renewed: spec
            .and_then(|spec| spec.renew_time.as_ref())
            .map(|time| time.0),
        revision: spec.and_then(|spec| spec.holder_identity.as_ref()?.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_verdict::{Backup, Cluster, Data, DataState, Decision, InitReport, RefuseCause};
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: &Value) -> SeenPod {
        seen_pod(&serde_json::from_value(json!({ "status": status })).unwrap())
    }

    #[test]
    fn etcd_crashes_when_the_kubelet_waits_before_it_starts_it_again() {
        let etcd = |state: Value| {
            pod(&json!({ "containerStatuses": [{
                "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 7, "state": state,
            }]}))
        };
        let waits = |reason: &str| etcd(json!({ "waiting": { "reason": reason } })).crashes;
        assert_eq!(waits("CrashLoopBackOff"), 7);
        assert_eq!(waits("ContainerCreating"), 0);
        assert_eq!(etcd(json!({ "running": {} })).crashes, 0);
        assert_eq!(pod(&json!({})).crashes, 0);
    }

    #[test]
    fn a_pod_is_asked_where_it_listens_whatever_the_spec_says_since() {
        let mut pod: Pod = serde_json::from_value(json!({
            "spec": { "containers": [
                { "name": "etcd", "ports": [
                    { "name": "server", "containerPort": 2380 },
                    { "name": "client", "containerPort": 2379 },
                ]},
                { "name": "backup-restore", "ports": [{ "name": "server", "containerPort": 8080 }] },
            ]},
            "status": { "podIP": "10.0.0.7" },
        }))
        .unwrap();
        crate::trim::pod(&mut pod);
        let seen = seen_pod(&pod);
        assert_eq!(
            (seen.talks.client_port, seen.talks.backup_port),
            (Some(2379), Some(8080))
        );
        let mut etcd = Etcd::new("main", mainstay_crds::EtcdSpec::default());
        etcd.spec.etcd.client_port = Some(2381);
        let urls = |seen: SeenPod| {
            let pods = BTreeMap::from([(Ordinal(0), seen)]);
            let targets = crate::observe::targets(
                &etcd,
                &Observation {
                    pods,
                    ..Observation::default()
                },
            );
            targets
                .into_iter()
                .map(|target| target.reach.url)
                .collect::<Vec<_>>()
        };
        assert_eq!(urls(seen.clone()), ["http://10.0.0.7:2379"]);
        let silent = SeenPod {
            talks: Talks::default(),
            ..seen
        };
        assert_eq!(urls(silent), ["http://10.0.0.7:2381"]);
    }

    #[test]
    fn what_a_check_says_is_kept_in_its_words() {
        let report = InitReport {
            version: InitReport::VERSION,
            member: "main-0".to_owned(),
            decision: Decision::Refuse(RefuseCause::WrongVolume),
            data: Data::of(DataState::Foreign),
            cluster: Cluster::Unreachable,
            backup: Backup::Unreachable,
        };
        let message = json!({
            "verdict": "refused", "reason": "the volume belongs to namespace \"other\"", "init": report,
        });
        let init = |message: &Value| {
            pod(&json!({ "initContainerStatuses": [{
                "name": INIT_CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 1,
                "state": { "terminated": { "exitCode": 42, "message": message.to_string() } },
            }]}))
        };
        let seen = init(&message);
        assert_eq!(seen.finding, Some(Finding::Refused));
        let words = "the volume belongs to namespace \"other\"";
        assert_eq!(seen.words.as_deref(), Some(words));
    }
}
