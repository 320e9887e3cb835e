//! `EtcdCopyBackupsTask`: backups copied from one store to another.

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::scalar::RetryPolicy;
use crate::store::StoreSpec;

/// What is copied where. Editing it after the copy has begun changes nothing but how long the task stays.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "EtcdCopyBackupsTask",
    plural = "etcdcopybackupstasks",
    namespaced,
    crates(kube_core = "::kube_core"),
    doc = "Copies the backups of an etcd cluster from one store to another, once.",
    derive = "PartialEq",
    status = "EtcdCopyBackupsTaskStatus",
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct EtcdCopyBackupsTaskSpec {
    /// Labels of the pod that copies, besides the controller's own. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Where backups are read.
    pub source_store: StoreSpec,
    /// Where backups are written. What is already there is not written again.
    pub target_store: StoreSpec,
    /// How old, in days, a backup may be to be copied. Default: any age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_backup_age: Option<i32>,
    /// How many backups are copied, the newest first. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_backups: Option<i32>,
    /// Whether to wait until the source says that its last snapshot is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_final_snapshot: Option<WaitForFinalSnapshot>,
    /// How many seconds a finished task stays to be looked at before it is removed with its Job; `0` removes it at once.
    /// Default: for ever. Ours, besides etcd-druid's fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Whether to wait until the source says that its last snapshot is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitForFinalSnapshot {
    /// Whether to wait.
    pub enabled: bool,
    /// How long to wait; then what is there is copied. Default: for ever, as with `0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<RetryPolicy>,
}

/// How the copy is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdCopyBackupsTaskStatus {
    /// `Succeeded` or `Failed`, once it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Generation of the spec this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}
