//! The resources etcd-mainstay understands, as Rust types and as the YAML that teaches them to Kubernetes.
//!
//! ```text
//! types (etcd, copy, ops) ─┬─► controller: read, decide, report
//!                          └─► definition ─► crds/yaml, docs/reference/api.md        (bin crdgen)
//! rules ───────────────────────▲
//! ```
//!
//! **Comes in**: `Etcd`, `EtcdCopyBackupsTask` and `EtcdOpsTask` of `druid.gardener.cloud/v1alpha1`, as users
//! of etcd-druid have them. **Goes out**: the same three, plus fields of ours that are all optional: below
//! `spec.mainstay` and `status.mainstay`, three sizes and versions in `status.members`, and further kinds of
//! ops task.
//!
//! **Holds**
//!
//! * What etcd-druid's definitions accept is accepted; nothing is validated more strictly.
//! * A spec is never written. Reading is lossy for fields this version does not know, so a resource that was
//!   read must not be sent back: the controller changes status by server-side apply with
//!   [`status::apply`], which holds nothing but the status, and metadata by patches that name single keys.
//!   Fields of a newer etcd-druid therefore survive our controller; they survive in the API server as
//!   long as the installed definition knows them.
//! * A name in a status that this version does not know is kept ([`ConditionType`] and its kin).
//!
//! **Does not do**: apply defaults (the controller's `validate` does), talk to an API server.

#![forbid(unsafe_code)]

pub mod condition;
pub mod copy;
pub mod definition;
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

/// The group of all three resources.
pub const GROUP: &str = "druid.gardener.cloud";
/// Their only version.
pub const VERSION: &str = "v1alpha1";
