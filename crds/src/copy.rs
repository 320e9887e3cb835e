//! `EtcdCopyBackupsTask`: copies backups from one store to another.

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::scalar::RetryPolicy;
use crate::store::StoreSpec;

/// Desired copy. After the copy has started, only a change of `ttlSecondsAfterFinished` has an effect.
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
    /// Labels of the pod that copies, in addition to the labels of the controller. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Store to copy from.
    pub source_store: StoreSpec,
    /// Store to copy to. Objects that it already contains are not copied again.
    pub target_store: StoreSpec,
    /// Maximum age, in days, of the backups to copy. Default: any age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_backup_age: Option<i32>,
    /// Maximum number of backups to copy, newest first. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_backups: Option<i32>,
    /// Wait for the final snapshot of the source before copying. Default: do not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_final_snapshot: Option<WaitForFinalSnapshot>,
    /// Seconds after which a finished task and its Job are deleted; `0` deletes them at once. Default: never.
    /// etcd-druid does not have this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Wait for the final snapshot of the source before copying.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitForFinalSnapshot {
    /// Wait for the final snapshot.
    pub enabled: bool,
    /// How long to wait; after that, the available backups are copied. Default: no timeout, like `0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<RetryPolicy>,
}

/// Observed state of the copy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdCopyBackupsTaskStatus {
    /// Conditions: `Succeeded` or `Failed` after the copy has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Error of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}
