//! Object store settings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tls::SecretReference;

/// Object store for backups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreSpec {
    /// Name of the bucket or container; for the provider `Local`, a directory. A change starts a new backup
    /// history in the new container; the existing snapshots stay in the old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), regex(pattern = CONTAINER_PATTERN))]
    pub container: Option<String>,
    /// Endpoint URL to use instead of the provider's own, for stores that implement the provider's protocol.
    /// Default: the endpoint of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_override: Option<String>,
    /// Key prefix inside the container. Snapshots are stored below `<prefix>/v2`. Two clusters must not share a
    /// prefix.
    pub prefix: String,
    /// Provider of the store: `aws` or `S3` (also `stackit`), `azure` or `ABS`, `gcp` or `GCS`, `alicloud` or
    /// `OSS`, `dell` or `ECS`, `openshift` or `OCS`, `Local`. Without a provider, no backup is taken. The CRD
    /// accepts `openstack` and `Swift`, but the controller rejects them: use the S3 API of the Swift cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Secret with the credentials of the store. Default: the ambient identity of the pod (workload identity).
    /// The secret can be renewed at any time without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
}

/// 3 to 63 characters, with a letter or digit at both ends.
pub const CONTAINER_PATTERN: &str = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{1,61}[a-zA-Z0-9]$";
