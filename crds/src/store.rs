//! Where backups live.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tls::SecretReference;

/// A place in an object store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreSpec {
    /// Name of the bucket or container. For the provider `Local` it is a directory. Changing it
    /// starts a new backup history there; the old one stays where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = CONTAINER_PATTERN))]
    pub container: Option<String>,
    /// Address to use instead of the provider's own: for stores that speak a provider's protocol
    /// elsewhere. Default: the provider's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_override: Option<String>,
    /// Directory inside the container. Snapshots are stored below `<prefix>/v2`. Two clusters must
    /// not share a prefix.
    pub prefix: String,
    /// Kind of store: `aws` or `S3` (also `stackit`), `azure` or `ABS`, `gcp` or `GCS`, `alicloud` or
    /// `OSS`, `dell` or `ECS`, `openshift` or `OCS`, `Local`. Without one, no backup can be taken.
    /// `openstack` and `Swift` are accepted by the definition and refused by the controller: use the S3
    /// interface of the Swift cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Secret with the credentials of the store. Default: the identity the pod has by itself
    /// (workload identity). The secret may be renewed at any time without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}

/// Three to sixty-three characters, no separator at either end.
pub const CONTAINER_PATTERN: &str = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{1,61}[a-zA-Z0-9]$";
