//! What this controller writes on objects for itself.

/// Who writes, as the API server records it.
pub const FIELD_MANAGER: &str = "etcd-steward";
/// Fingerprint of what was last applied.
pub const APPLIED: &str = "steward.druid.gardener.cloud/applied";
/// On a StatefulSet: how many members the cluster has, also while it sleeps.
pub const NOTED_SIZE: &str = "steward.druid.gardener.cloud/members";
/// On pods: fingerprint of the authorities etcd started with.
pub const AUTHORITIES: &str = "steward.druid.gardener.cloud/authorities";
/// On a StatefulSet: how far encryption between members is.
pub const PEER_STAGE: &str = "steward.druid.gardener.cloud/peer-tls";
/// On a Job: the recovery it belongs to. On a task: the recovery it began.
pub const INCIDENT: &str = "steward.druid.gardener.cloud/incident";
/// On a Job: which attempt it is.
pub const ATTEMPT: &str = "steward.druid.gardener.cloud/attempt";
/// Who holds the lock of the coordination document: this controller, whichever of its processes leads.
pub const HOLDER: &str = "steward-controller";
