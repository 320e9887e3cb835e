//! Trims cached objects to the fields in use, and hashes the fields whose change triggers a reconcile.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerStatus, PersistentVolumeClaim, Pod, PodSpec, PodStatus,
    Volume,
};

use mainstay_manifests::ETCD_CONTAINER;
use mainstay_manifests::labels::JOB_ETCD;
use mainstay_manifests::tls::is_certificate_reference;

use crate::fingerprint::hash_value;

/// Keeps of the spec only volume names, container images, ports of listeners and references to certificates.
pub(crate) fn trim_pod(pod: &mut Pod) {
    // The owner is known from the labels.
    pod.metadata.owner_references = None;
    let trim_container = |container: &Container| Container {
        name: container.name.clone(),
        image: container.image.clone(),
        args: trim_args(container),
        ports: trim_ports(container),
        ..Container::default()
    };
    let trim_volume = |volume: &Volume| Volume {
        name: volume.name.clone(),
        secret: volume
            .secret
            .clone()
            .filter(|_| is_certificate_reference(&volume.name)),
        ..Volume::default()
    };
    if let Some(spec) = &mut pod.spec {
        *spec = PodSpec {
            containers: spec.containers.iter().map(trim_container).collect(),
            volumes: spec
                .volumes
                .as_ref()
                .map(|all| all.iter().map(trim_volume).collect()),
            ..PodSpec::default()
        };
    }
    let labels = pod.metadata.labels.as_ref();
    if let Some(status) = &mut pod.status {
        let trim_container_status = |container: ContainerStatus| ContainerStatus {
            name: container.name,
            state: container.state,
            last_state: container.last_state,
            ready: container.ready,
            restart_count: container.restart_count,
            ..ContainerStatus::default()
        };
        let init = status.init_container_statuses.take();
        // Jobs report their result in a termination message; of etcd the restart count detects a crash loop.
        let is_of_job = labels.is_some_and(|labels| labels.contains_key(JOB_ETCD));
        let containers = status.container_statuses.take().into_iter().flatten();
        let containers = containers.filter(|one| is_of_job || is_waiting_etcd(one));
        let containers: Vec<ContainerStatus> = containers.map(trim_container_status).collect();
        *status = PodStatus {
            conditions: status.conditions.take(),
            phase: status.phase.take(),
            pod_ip: status.pod_ip.take(),
            init_container_statuses: init
                .map(|all| all.into_iter().map(trim_container_status).collect()),
            container_statuses: Some(containers).filter(|all| !all.is_empty()),
            ..PodStatus::default()
        };
    }
}

fn is_waiting_etcd(container: &ContainerStatus) -> bool {
    let state = container.state.as_ref();
    container.name == ETCD_CONTAINER && state.is_some_and(|state| state.waiting.is_some())
}

/// The client and peer ports of etcd.
fn trim_ports(container: &Container) -> Option<Vec<ContainerPort>> {
    let is_in_use =
        |port: &&ContainerPort| matches!(port.name.as_deref(), Some("client" | "server"));
    let ports = container.ports.iter().flatten().filter(is_in_use);
    let ports: Vec<ContainerPort> = ports
        .map(|port| ContainerPort {
            name: port.name.clone(),
            container_port: port.container_port,
            ..ContainerPort::default()
        })
        .collect();
    Some(ports).filter(|ports| !ports.is_empty())
}

fn trim_args(container: &Container) -> Option<Vec<String>> {
    let args = container.command.iter().chain(&container.args).flatten();
    let mut certificate_args: Vec<String> = args
        .filter(|arg| is_certificate_reference(arg))
        .cloned()
        .collect();
    certificate_args.shrink_to_fit();
    Some(certificate_args).filter(|certificate_args| !certificate_args.is_empty())
}

/// Hashes readiness, identity, address and the message of the init container.
pub(crate) fn hash_pod_change(pod: &Pod) -> u64 {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let conditions: Vec<(&str, &str)> = conditions
        .into_iter()
        .flatten()
        .map(|c| (c.type_.as_str(), c.status.as_str()))
        .collect();
    let init_messages: Vec<(bool, Option<&str>)> = status
        .and_then(|status| status.init_container_statuses.as_ref())
        .into_iter()
        .flatten()
        .map(|container| {
            // A restarted init container reports the result of its last run.
            let last = container.last_state.as_ref().or(container.state.as_ref());
            let message = last.and_then(|state| state.terminated.as_ref()?.message.as_deref());
            (container.ready, message)
        })
        .collect();
    let meta = &pod.metadata;
    let address = status.and_then(|status| status.pod_ip.as_ref());
    hash_value(&(
        &meta.uid,
        &meta.labels,
        meta.deletion_timestamp.is_some(),
        conditions,
        init_messages,
        address,
    ))
}

pub(crate) fn trim_pvc(pvc: &mut PersistentVolumeClaim) {
    pvc.metadata.annotations = None;
}

pub(crate) fn trim_lease(_: &mut Lease) {}

/// Hashes everything except the renewal time: each renewal would trigger a reconcile.
pub(crate) fn hash_lease_change(lease: &Lease) -> u64 {
    let holder = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_ref());
    let was_never_renewed = lease
        .spec
        .as_ref()
        .is_none_or(|spec| spec.renew_time.is_none());
    let meta = &lease.metadata;
    hash_value(&(
        &meta.uid,
        &meta.annotations,
        &meta.labels,
        holder,
        was_never_renewed,
    ))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn trimmed_pod_keeps_the_etcd_crash_count() {
        let kept = |name: &str, state: Value| {
            let mut whole: Pod = serde_json::from_value(json!({ "status": { "containerStatuses": [{
                "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 7, "state": state,
            }]}}))
            .unwrap();
            trim_pod(&mut whole);
            whole.status.unwrap().container_statuses
        };
        let loops = || json!({ "waiting": { "reason": "CrashLoopBackOff" } });
        let etcd = kept("etcd", loops()).expect("the status of etcd").remove(0);
        let waiting = etcd.state.unwrap().waiting.unwrap();
        assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
        assert_eq!(etcd.restart_count, 7);
        assert_eq!(kept("backup-restore", loops()), None);
        assert_eq!(kept("etcd", json!({ "running": {} })), None);
    }

    #[test]
    fn lease_renewal_triggers_no_reconcile_but_a_new_holder_does() {
        let lease = |second: i64, holder: &str| Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                renew_time: Some(MicroTime(Timestamp::from_second(second).unwrap())),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        assert_eq!(
            hash_lease_change(&lease(1, "a:Leader")),
            hash_lease_change(&lease(2, "a:Leader"))
        );
        assert_ne!(
            hash_lease_change(&lease(1, "a:Leader")),
            hash_lease_change(&lease(1, "a:Member"))
        );
        assert_ne!(
            hash_lease_change(&lease(1, "a:Leader")),
            hash_lease_change(&Lease::default())
        );
    }
}
