//! References to secrets that contain certificates.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Reference to a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SecretReference {
    /// Name of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Name of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl SecretReference {
    /// Name of the secret; `None` if it is missing or empty, because clients write empty references for absent
    /// ones.
    pub fn non_empty_name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }
}

/// Reference to a secret that contains a CA bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct CaSecretReference {
    /// Name of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Accepted and ignored: secrets are read from the namespace of the resource that refers to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Key of the CA bundle in the secret. Default: `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_key: Option<String>,
}

impl CaSecretReference {
    /// Key of the CA bundle if `dataKey` is not set.
    pub const DEFAULT_KEY: &str = "ca.crt";

    /// Name of the secret; `None` if it is missing or empty.
    pub fn non_empty_name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }

    /// Key of the CA bundle in the secret.
    pub fn key(&self) -> &str {
        self.data_key
            .as_deref()
            .filter(|key| !key.is_empty())
            .unwrap_or(Self::DEFAULT_KEY)
    }
}

/// TLS of one listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsConfig {
    /// CA bundle that the certificates of clients and servers are verified against.
    #[serde(rename = "tlsCASecretRef")]
    pub ca: CaSecretReference,
    /// Server certificate and key of the listener.
    #[serde(rename = "serverTLSSecretRef")]
    pub server: SecretReference,
    /// Client certificate and key that clients inside the pod use for this listener. Default: none. A reference
    /// without a name counts as none.
    #[serde(
        rename = "clientTLSSecretRef",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub client: Option<SecretReference>,
}

impl TlsConfig {
    /// Name of the secret with the client certificate, if there is one.
    pub fn client_secret(&self) -> Option<&str> {
        self.client
            .as_ref()
            .and_then(SecretReference::non_empty_name)
    }
}

/// TLS of the traffic between members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PeerTlsConfig {
    /// CA bundle and certificates.
    #[serde(flatten)]
    pub tls: TlsConfig,
    /// Accept every certificate that the CA signed, whatever names it contains. Default: false. A change
    /// restarts the members one at a time.
    #[serde(
        rename = "skipClientSANVerification",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub skip_client_san_verification: Option<bool>,
}
