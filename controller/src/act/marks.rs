//! What this controller writes on objects for itself.

/// Who writes, as the API server records it.
pub const FIELD_MANAGER: &str = "etcd-mainstay";
/// Fingerprint of what was last applied.
pub const APPLIED_FINGERPRINT: &str = "etcd-mainstay.io/applied";
/// On a StatefulSet: how many members the cluster has, also while it sleeps.
pub const MEMBER_COUNT: &str = "etcd-mainstay.io/members";
/// On pods: fingerprint of the authorities etcd started with.
pub const CA_FINGERPRINT: &str = "etcd-mainstay.io/authorities";
/// On a StatefulSet: how far encryption between members is.
pub const PEER_TLS_STAGE: &str = "etcd-mainstay.io/peer-tls";
/// On a Job: the recovery it belongs to. On a task: the recovery it began.
pub const INCIDENT: &str = "etcd-mainstay.io/incident";
/// On a Job: which attempt it is.
pub const ATTEMPT: &str = "etcd-mainstay.io/attempt";
/// Who holds the lock of the coordination document: this controller, whichever of its processes leads.
pub const LOCK_HOLDER: &str = "mainstay-controller";
