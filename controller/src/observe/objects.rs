//! Converts the cached objects of one cluster to plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, PersistentVolumeClaim, Pod, PodSpec};
use kube::{Api, Client, ResourceExt};
use mainstay_coordination::annotations::PEER_TLS;
use mainstay_crds::Etcd;
use mainstay_crds::tls::PeerTlsConfig;
use mainstay_manifests::tls::{find_backup_tls, find_client_tls, find_peer_tls};
use mainstay_manifests::{ETCD_CONTAINER, INIT_CONTAINER, Names, SIDECAR_CONTAINER, quantity};
use mainstay_telemetry::ErrorChain;
use tracing::debug;

use super::CaFingerprint;
use super::init_verdict::{self, InitVerdict};
use crate::caches::Stores;
use crate::caches::packed::get;
use crate::model::annotations::{APPLIED_FINGERPRINT, MEMBER_COUNT, PEER_TLS_STAGE};
use crate::model::{
    InitFinding, MAX_MEMBERS, MemberLeaseHolder, Observation, ObservedMemberLease, ObservedPod,
    ObservedPvc, ObservedStatefulSet, Ordinal, PeerTlsStage, PodListeners, ReplicaCounts,
    SnapshotLease, UpdateStrategy, count_members,
};

/// Label with the controller revision a pod was created from.
const REVISION_LABEL: &str = "controller-revision-hash";
/// Ordinals beyond the expected members to check for leftover objects.
const EXTRA_ORDINALS: u32 = 8;
/// Upper bound of observed members: a user may scale the StatefulSet to any number, and the excess is reverted either way.
const MAX_OBSERVED_MEMBERS: u32 = MAX_MEMBERS + 1;

/// Observed objects of one cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects {
    /// Plain data, without the state of etcd itself.
    pub(crate) observation: Observation,
    pub(crate) stateful_set: Option<Arc<StatefulSet>>,
    /// Peer certificates in the live StatefulSet.
    pub(crate) peer_tls: Option<PeerTlsConfig>,
    /// Host directory of a `Local` store, when its Secret sets one.
    pub(crate) local_store_root: Option<String>,
    /// CAs that a restarted member would load.
    pub(crate) ca_fingerprint: CaFingerprint,
}

/// Reads the objects from the caches.
pub(crate) fn observe_objects(stores: &Stores, etcd: &Etcd) -> Objects {
    let names = Names::new(etcd);
    let set = get(
        &stores.stateful_sets,
        &names.stateful_set(),
        names.namespace,
    );
    let config = get(&stores.config_maps, &names.config_map(), names.namespace);
    let desired = count_members(etcd);
    let present = set.as_ref().map_or(0, replicas);
    let recorded = set.as_ref().and_then(recorded_size).unwrap_or_default();
    let limit = desired
        .max(present)
        .max(recorded)
        .saturating_add(EXTRA_ORDINALS);
    let each = || (0..limit).map(Ordinal);
    let lease = |name: &str| get(&stores.leases, name, names.namespace);
    let observation = Observation {
        stateful_set: set.as_ref().map(observe_stateful_set),
        pods: each()
            .filter_map(|n| {
                Some((
                    n,
                    observe_pod(&get(&stores.pods, &names.pod(n.0), names.namespace)?),
                ))
            })
            .collect(),
        pvcs: each()
            .filter_map(|n| {
                Some((
                    n,
                    observe_pvc(&get(&stores.pvcs, &names.pvc(n.0), names.namespace)?),
                ))
            })
            .collect(),
        leases: each()
            .filter_map(|n| Some((n, observe_member_lease(&lease(&names.member(n.0))?))))
            .collect::<BTreeMap<_, _>>(),
        full_snapshot: lease(&names.full_snapshot_lease())
            .map(|lease| observe_snapshot_lease(&lease)),
        delta_snapshot: lease(&names.delta_snapshot_lease())
            .map(|lease| observe_snapshot_lease(&lease)),
        recovery: super::recovery::observe_recovery(stores, etcd, limit, present == 0),
        upkeep: super::upkeep::observe_upkeep(stores, etcd),
        ..Observation::default()
    };
    let peer_tls = set.as_ref().and_then(|set| {
        let nothing = ConfigMap::default();
        find_peer_tls(set, config.as_ref().unwrap_or(&nothing))
    });
    Objects {
        observation,
        stateful_set: set.map(Arc::new),
        peer_tls,
        local_store_root: None,
        ca_fingerprint: CaFingerprint::None,
    }
}

/// Confirms with the API server which PVCs are missing, where a decision depends on it. A PVC can be absent from the cache
/// because it was deleted, or because its label was removed.
pub(crate) async fn confirm_missing_pvcs(client: &Client, etcd: &Etcd, observed: &mut Observation) {
    // If one pod is not ready, check all: quorum loss is judged by the PVCs of all members.
    let is_any_unready = observed.pods.values().any(|pod| !pod.is_ready);
    let unready = observed.pods.keys().filter(|_| is_any_unready).copied();
    // Old data of a restored cluster must be set aside on every PVC, else an old member starts beside the new cluster.
    let size = observed
        .recovery
        .open_incident()
        .map_or(0, |incident| incident.size);
    let restored = (0..size.min(MAX_OBSERVED_MEMBERS)).map(Ordinal);
    let relevant: BTreeSet<Ordinal> = unready.chain(restored).collect();
    confirm_pvcs(client, etcd, observed, relevant).await;
}

/// Requests those of these PVCs that are not in the cache.
pub(crate) async fn confirm_pvcs(
    client: &Client,
    etcd: &Etcd,
    observed: &mut Observation,
    ordinals: impl IntoIterator<Item = Ordinal>,
) {
    let names = Names::new(etcd);
    let missing = ordinals
        .into_iter()
        .filter(|ordinal| !observed.pvcs.contains_key(ordinal));
    let missing: Vec<Ordinal> = missing.collect();
    let pvcs = Api::<PersistentVolumeClaim>::namespaced(client.clone(), names.namespace);
    for ordinal in missing {
        match pvcs.get_opt(&names.pvc(ordinal.0)).await {
            Ok(None) => {}
            Ok(Some(pvc)) => {
                observed.pvcs.insert(ordinal, observe_pvc(&pvc));
            }
            Err(error) => {
                // A PVC wrongly taken for lost could start a recovery.
                debug!(error = %ErrorChain(&error), "PVC lookup failed; assuming it exists");
                observed.pvcs.insert(ordinal, ObservedPvc::default());
            }
        }
    }
}

fn replicas(set: &StatefulSet) -> u32 {
    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
    replicas
        .and_then(|replicas| u32::try_from(replicas).ok())
        .unwrap_or_default()
        .min(MAX_OBSERVED_MEMBERS)
}

fn recorded_size(set: &StatefulSet) -> Option<u32> {
    let recorded: u32 = set.annotations().get(MEMBER_COUNT)?.parse().ok()?;
    Some(recorded.min(MAX_OBSERVED_MEMBERS))
}

fn observe_stateful_set(set: &StatefulSet) -> ObservedStatefulSet {
    let spec = set.spec.as_ref();
    let status = set.status.as_ref();
    let pod = spec.and_then(|spec| spec.template.spec.as_ref());
    let etcd = pod.and_then(|pod| pod.containers.iter().find(|c| c.name == ETCD_CONTAINER));
    let claim = spec.and_then(|spec| spec.volume_claim_templates.as_ref()?.first()?.spec.as_ref());
    let size = claim.and_then(|claim| claim.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let strategy = spec.and_then(|spec| spec.update_strategy.as_ref()?.type_.as_deref());
    let generation = set.metadata.generation;
    let recorded_stage = set
        .annotations()
        .get(PEER_TLS_STAGE)
        .and_then(|value| PeerTlsStage::parse(value));
    let has_certificates = find_peer_tls(set, &ConfigMap::default()).is_some();
    ObservedStatefulSet {
        uid: set.metadata.uid.clone().unwrap_or_default(),
        resource_version: set.metadata.resource_version.clone().unwrap_or_default(),
        is_deleting: set.metadata.deletion_timestamp.is_some(),
        is_observed: status.is_some_and(|status| status.observed_generation >= generation),
        replicas: replicas(set),
        update_strategy: if strategy == Some("OnDelete") {
            UpdateStrategy::OnDelete
        } else {
            UpdateStrategy::RollingUpdate
        },
        is_ours: set.annotations().contains_key(APPLIED_FINGERPRINT),
        update_revision: status.and_then(|status| status.update_revision.clone()),
        etcd_image: etcd.and_then(|container| container.image.clone()),
        storage_bytes: size.and_then(|size| quantity::to_bytes(size).ok()),
        // etcd-druid records no stage; its members use peer TLS if they have certificates.
        peer_tls_stage: recorded_stage.unwrap_or(if has_certificates {
            PeerTlsStage::On
        } else {
            PeerTlsStage::Off
        }),
        recorded_size: recorded_size(set),
        counts: ReplicaCounts {
            current: status.map_or(0, |status| status.replicas),
            ready: status
                .and_then(|status| status.ready_replicas)
                .unwrap_or_default(),
        },
    }
}

fn observe_pod(pod: &Pod) -> ObservedPod {
    let status = pod.status.as_ref();
    let has_condition = |type_: &str| {
        let conditions = status.and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == type_ && condition.status == "True")
    };
    let spec = pod.spec.as_ref();
    let etcd = spec.and_then(|spec| spec.containers.iter().find(|c| c.name == ETCD_CONTAINER));
    let verdict = read_init_verdict(pod);
    let newest_revision = verdict.as_ref().and_then(|verdict| verdict.data_revision);
    // Once init containers have finished, an older verdict of a restarted one no longer counts.
    let (finding, message) = if has_condition("Initialized") {
        (Some(InitFinding::CanStart), None)
    } else {
        verdict
            .map(|verdict| (verdict.finding, verdict.message))
            .unzip()
    };
    ObservedPod {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        revision: pod.labels().get(REVISION_LABEL).cloned(),
        is_ready: has_condition("Ready"),
        has_ready_containers: has_condition("ContainersReady"),
        is_deleting: pod.metadata.deletion_timestamp.is_some(),
        created_at: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
        address: status
            .and_then(|status| status.pod_ip.clone())
            .filter(|address| !address.is_empty()),
        etcd_image: etcd.and_then(|container| container.image.clone()),
        finding,
        init_message: message.flatten(),
        data_revision: newest_revision,
        crash_count: count_crashes(pod).unwrap_or_default(),
        listeners: PodListeners {
            client_tls: spec.and_then(find_client_tls),
            backup_tls: spec.and_then(find_backup_tls),
            client_port: spec.and_then(|spec| find_port(spec, ETCD_CONTAINER, "client")),
            backup_port: spec.and_then(|spec| find_port(spec, SIDECAR_CONTAINER, "server")),
        },
    }
}

/// A container port by name.
fn find_port(pod: &PodSpec, container: &str, name: &str) -> Option<u16> {
    let container = pod.containers.iter().find(|one| one.name == container)?;
    let mut ports = container.ports.iter().flatten();
    let port = ports.find(|port| port.name.as_deref() == Some(name))?;
    u16::try_from(port.container_port).ok()
}

/// The verdict of the init container when it last terminated.
fn read_init_verdict(pod: &Pod) -> Option<InitVerdict> {
    let status = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let init: &ContainerStatus = status
        .iter()
        .find(|container| container.name == INIT_CONTAINER)?;
    let termination_message = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
        state.as_ref()?.terminated.as_ref()?.message.clone()
    };
    // While the kubelet waits to restart the container, the termination is in lastState.
    let message =
        termination_message(&init.state).or_else(|| termination_message(&init.last_state))?;
    init_verdict::parse_init_verdict(&message)
}

/// Restarts of etcd while the kubelet delays the next one (CrashLoopBackOff); `None` otherwise.
fn count_crashes(pod: &Pod) -> Option<u32> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?;
    let etcd = status.iter().find(|one| one.name == ETCD_CONTAINER)?;
    let waiting = etcd.state.as_ref()?.waiting.as_ref()?;
    let is_loop = waiting.reason.as_deref() == Some("CrashLoopBackOff");
    is_loop.then(|| u32::try_from(etcd.restart_count).unwrap_or_default())
}

fn observe_pvc(pvc: &PersistentVolumeClaim) -> ObservedPvc {
    let status = pvc.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let requested = pvc
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let capacity = status.and_then(|status| status.capacity.as_ref()?.get("storage"));
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let resize_condition = conditions.into_iter().flatten().find(|condition| {
        matches!(
            condition.type_.as_str(),
            "ControllerResizeError" | "NodeResizeError"
        ) && condition.status == "True"
    });
    ObservedPvc {
        uid: pvc.metadata.uid.clone().unwrap_or_default(),
        is_deleting: pvc.metadata.deletion_timestamp.is_some(),
        is_bound: phase == Some("Bound"),
        is_lost: phase == Some("Lost"),
        requested_bytes: requested.and_then(|size| quantity::to_bytes(size).ok()),
        capacity_bytes: capacity.and_then(|size| quantity::to_bytes(size).ok()),
        resize_error: resize_condition.and_then(|condition| condition.message.clone()),
    }
}

fn observe_member_lease(lease: &Lease) -> ObservedMemberLease {
    let spec = lease.spec.as_ref();
    ObservedMemberLease {
        holder: spec.and_then(|spec| MemberLeaseHolder::parse(spec.holder_identity.as_deref()?)),
        renewed_at: spec
            .and_then(|spec| spec.renew_time.as_ref())
            .map(|time| time.0),
        peer_tls: lease
            .annotations()
            .get(PEER_TLS)
            .and_then(|text| text.parse().ok()),
    }
}

fn observe_snapshot_lease(lease: &Lease) -> SnapshotLease {
    let spec = lease.spec.as_ref();
    SnapshotLease {
        created_at: lease
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0),
        renewed_at: spec
            .and_then(|spec| spec.renew_time.as_ref())
            .map(|time| time.0),
        revision: spec.and_then(|spec| spec.holder_identity.as_ref()?.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_verdict::{
        BackupSummary, ClusterSummary, DataDirSummary, DataState, InitDecision, InitReport,
        RefuseCause,
    };
    use serde_json::{Value, json};

    use super::*;

    fn observe_status(status: &Value) -> ObservedPod {
        observe_pod(&serde_json::from_value(json!({ "status": status })).unwrap())
    }

    #[test]
    fn crash_count_is_the_restart_count_only_in_crash_loop_back_off() {
        let etcd = |state: Value| {
            observe_status(&json!({ "containerStatuses": [{
                "name": "etcd", "image": "", "imageID": "", "ready": false, "restartCount": 7, "state": state,
            }]}))
        };
        let crash_count =
            |reason: &str| etcd(json!({ "waiting": { "reason": reason } })).crash_count;
        assert_eq!(crash_count("CrashLoopBackOff"), 7);
        assert_eq!(crash_count("ContainerCreating"), 0);
        assert_eq!(etcd(json!({ "running": {} })).crash_count, 0);
        assert_eq!(observe_status(&json!({})).crash_count, 0);
    }

    #[test]
    fn pod_is_queried_on_its_own_ports_not_those_of_the_spec() {
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
        crate::trim::trim_pod(&mut pod);
        let observed = observe_pod(&pod);
        assert_eq!(
            (
                observed.listeners.client_port,
                observed.listeners.backup_port
            ),
            (Some(2379), Some(8080))
        );
        let mut etcd = Etcd::new("main", mainstay_crds::EtcdSpec::default());
        etcd.spec.etcd.client_port = Some(2381);
        let urls = |observed: ObservedPod| {
            let pods = BTreeMap::from([(Ordinal(0), observed)]);
            let targets = crate::observe::list_targets(
                &etcd,
                &Observation {
                    pods,
                    ..Observation::default()
                },
            );
            targets
                .into_iter()
                .map(|target| target.endpoint.url)
                .collect::<Vec<_>>()
        };
        assert_eq!(urls(observed.clone()), ["http://10.0.0.7:2379"]);
        let without_ports = ObservedPod {
            listeners: PodListeners::default(),
            ..observed
        };
        assert_eq!(urls(without_ports), ["http://10.0.0.7:2381"]);
    }

    #[test]
    fn init_check_message_is_kept_verbatim() {
        let report = InitReport {
            version: InitReport::VERSION,
            member: "main-0".to_owned(),
            decision: InitDecision::Refuse(RefuseCause::WrongVolume),
            data: DataDirSummary::from_state(DataState::Foreign),
            cluster: ClusterSummary::Unreachable,
            backup: BackupSummary::Unreachable,
        };
        let message = json!({
            "verdict": "refused", "reason": "the volume belongs to namespace \"other\"", "init": report,
        });
        let init = |message: &Value| {
            observe_status(&json!({ "initContainerStatuses": [{
                "name": INIT_CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 1,
                "state": { "terminated": { "exitCode": 42, "message": message.to_string() } },
            }]}))
        };
        let observed = init(&message);
        assert_eq!(observed.finding, Some(InitFinding::Refused));
        let reason = "the volume belongs to namespace \"other\"";
        assert_eq!(observed.init_message.as_deref(), Some(reason));
    }
}
