//! Annotations that users set and that this controller writes, and the names under which it writes.

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

/// Requests one reconcile of the spec; removed when it is done.
pub(crate) const OPERATION: &str = "druid.gardener.cloud/operation";
/// The older key, which Gardener still writes.
pub(crate) const LEGACY_OPERATION: &str = "gardener.cloud/operation";
/// The value of both keys.
pub(crate) const RECONCILE: &str = "reconcile";
/// Suspends spec changes while it is set, with any value.
pub(crate) const SUSPEND_RECONCILE: &str = "druid.gardener.cloud/suspend-etcd-spec-reconcile";
/// Keeps manual changes to managed objects while it is set, with any value.
pub(crate) const DISABLE_COMPONENT_PROTECTION: &str =
    "druid.gardener.cloud/disable-etcd-component-protection";
/// Creates configuration objects but no pods while it is set, with any value.
pub(crate) const DISABLE_RUNTIME_COMPONENTS: &str =
    "druid.gardener.cloud/disable-etcd-runtime-component-creation";
/// Skips the snapshot before a disruptive change; the value is the generation it holds for.
pub(crate) const WITHOUT_SNAPSHOT: &str = "etcd-mainstay.io/without-snapshot";
/// Keeps an Etcd until its objects are deleted. The name is etcd-druid's.
pub(crate) const FINALIZER: &str = "druid.gardener.cloud/etcd-druid";
