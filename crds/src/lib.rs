//! The custom resources of etcd-mainstay, as Rust types and as CRD manifests.
//!
//! ```text
//! types (etcd, copy, ops) ─┬─► controller: reads specs, writes status
//!                          └─► definition ─► crds/yaml, docs/reference/api.md        (bin crdgen)
//! rules ───────────────────────▲
//! ```
//!
//! The crate covers `Etcd`, `EtcdCopyBackupsTask` and `EtcdOpsTask` of `druid.gardener.cloud/v1alpha1`, as users of
//! etcd-druid know them. etcd-mainstay adds optional fields only: `spec.mainstay`, `status.mainstay`, database sizes
//! and the etcd version in `status.members`, and further kinds of ops task.
//!
//! **Invariants**
//!
//! * Every resource that etcd-druid's CRDs accept is accepted; no field is validated more strictly.
//! * The controller never writes a spec. Deserializing drops fields that this version does not know, so a resource
//!   that was read must not be sent back. The controller changes status by server-side apply with
//!   [`status::apply`], which contains nothing but the status, and metadata by patches that name single keys.
//!   Fields of a newer etcd-druid therefore survive our controller, as long as the installed CRD has them.
//! * An unknown name in a status is kept as it is ([`ConditionType`] and the other open enums).
//!
//! The crate does not apply defaults (the controller's `validate` does) and does not call an API server.

#![forbid(unsafe_code)]

pub mod condition;
pub mod copy;
pub mod crd;
pub mod etcd;
pub mod generated;
mod openenum;
pub mod ops;
mod reference;
pub mod rules;
pub mod scalar;
pub mod status;
pub mod store;
mod structural;
pub mod tls;

pub use condition::{
    Condition, ConditionStatus, ConditionType, LastError, LastOperation, OperationState,
    OperationType,
};
pub use copy::{EtcdCopyBackupsTask, EtcdCopyBackupsTaskSpec, EtcdCopyBackupsTaskStatus};
pub use etcd::{Etcd, EtcdSpec, EtcdStatus};
pub use ops::{EtcdOpsTask, EtcdOpsTaskSpec, EtcdOpsTaskStatus};

/// API group of all three custom resources.
pub const GROUP: &str = "druid.gardener.cloud";
/// API version of all three custom resources; there is no other.
pub const VERSION: &str = "v1alpha1";
