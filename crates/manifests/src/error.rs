//! Errors of rendering. Each names the field that the author of the resource must fix.

use mainstay_crds::scalar::DurationError;

use crate::quantity::QuantityError;

/// Why an Etcd cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The resource has no name or no namespace, so it was never stored.
    #[error("metadata has no {field}")]
    MissingName {
        /// The missing metadata field.
        field: &'static str,
    },
    /// Unknown store provider.
    #[error("{field}: unknown store provider {provider:?}")]
    UnknownProvider {
        /// Path of the store in the spec.
        field: &'static str,
        /// The unknown provider; empty if the store has none.
        provider: String,
    },
    /// A store without a container, which its provider requires.
    #[error("{field}: provider {provider} requires a container")]
    MissingContainer {
        /// Path of the store in the spec.
        field: &'static str,
        /// Name of the provider.
        provider: &'static str,
    },
    /// A port outside 1 to 65535.
    #[error("{field}: port {port} must be between 1 and 65535")]
    InvalidPort {
        /// Path of the port in the spec.
        field: &'static str,
        /// The invalid port.
        port: i32,
    },
    /// A quantity that is not a number of bytes.
    #[error("{field}")]
    InvalidQuantity {
        /// Path of the quantity in the spec.
        field: &'static str,
        /// Why the quantity is invalid.
        source: QuantityError,
    },
    /// An invalid duration.
    #[error("{field}")]
    InvalidDuration {
        /// Path of the duration in the spec.
        field: &'static str,
        /// Why the duration is invalid.
        source: DurationError,
    },
    /// A TLS section without the name of a secret.
    #[error("{field}: name of the secret is missing")]
    MissingSecret {
        /// Path of the reference in the spec.
        field: &'static str,
    },
    /// An object cannot be serialized.
    #[error("failed to serialize {kind} {name} as JSON")]
    Encode {
        /// Kind of the object.
        kind: &'static str,
        /// Name of the object.
        name: String,
        /// The error of the serializer.
        source: serde_json::Error,
    },
    /// The configuration of etcd cannot be serialized.
    #[error("failed to serialize the configuration of etcd as YAML")]
    EncodeConfig {
        /// The error of the serializer.
        source: serde_norway::Error,
    },
}
