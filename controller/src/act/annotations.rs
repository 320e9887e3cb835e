//! Annotations and identities that this controller writes on objects.

/// Field manager of every write, as the API server records it.
pub(crate) const FIELD_MANAGER: &str = "etcd-mainstay";
/// Fingerprint of the object as last applied.
pub(crate) const APPLIED_FINGERPRINT: &str = "etcd-mainstay.io/applied";
/// On a StatefulSet: number of members of the cluster, kept while it is hibernated.
pub(crate) const MEMBER_COUNT: &str = "etcd-mainstay.io/members";
/// On pods: fingerprint of the CAs etcd started with.
pub(crate) const CA_FINGERPRINT: &str = "etcd-mainstay.io/authorities";
/// On a StatefulSet: stage of switching peer TLS on or off (`off`, `prepared`, `on`).
pub(crate) const PEER_TLS_STAGE: &str = "etcd-mainstay.io/peer-tls";
/// On a Job: token of the recovery, or id of the task, that it belongs to. On a task: the recovery it started.
pub(crate) const INCIDENT: &str = "etcd-mainstay.io/incident";
/// On a Job or a copy task: number of the attempt, from 1.
pub(crate) const ATTEMPT: &str = "etcd-mainstay.io/attempt";
/// Holder of the lock in the coordination ConfigMap: this controller, whichever of its replicas leads.
pub(crate) const LOCK_HOLDER: &str = "mainstay-controller";
