//! References to secrets, and the certificates they hold.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A secret, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SecretReference {
    /// Name of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Accepted and ignored: secrets are always read from the namespace of the resource that names
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl SecretReference {
    /// The name, unless it is missing or empty: clients write empty references for absent ones.
    pub fn non_empty_name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }
}

/// A secret that holds a bundle of certificate authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct CaSecretReference {
    /// Name of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Accepted and ignored: secrets are always read from the namespace of the resource that names
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Key of the secret under which the bundle is found. Default: `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_key: Option<String>,
}

impl CaSecretReference {
    /// Where the bundle is when the resource does not say.
    pub const DEFAULT_KEY: &str = "ca.crt";

    /// The name, unless it is missing or empty.
    pub fn non_empty_name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }

    /// The key that holds the bundle.
    pub fn key(&self) -> &str {
        self.data_key
            .as_deref()
            .filter(|key| !key.is_empty())
            .unwrap_or(Self::DEFAULT_KEY)
    }
}

/// Certificates of one listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsConfig {
    /// Authorities that certificates of the other side are checked against.
    #[serde(rename = "tlsCASecretRef")]
    pub ca: CaSecretReference,
    /// Certificate and key the listener shows.
    #[serde(rename = "serverTLSSecretRef")]
    pub server: SecretReference,
    /// Certificate and key that clients inside the pod show to the listener. Default: none; a
    /// reference without a name counts as none.
    #[serde(
        rename = "clientTLSSecretRef",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub client: Option<SecretReference>,
}

impl TlsConfig {
    /// Name of the client certificate's secret, where there is one.
    pub fn client_secret(&self) -> Option<&str> {
        self.client.as_ref().and_then(SecretReference::non_empty_name)
    }
}

/// Certificates of the traffic between members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PeerTlsConfig {
    /// The certificates.
    #[serde(flatten)]
    pub tls: TlsConfig,
    /// Whether members accept any certificate their authority has signed, whatever names it carries.
    /// Default: false. Changing it restarts the members one at a time.
    #[serde(
        rename = "skipClientSANVerification",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub skip_client_san_verification: Option<bool>,
}
