//! Why an Etcd cannot be rendered. Each is the author's to mend, and names the field.

use mainstay_crds::scalar::DurationError;

use crate::quantity::QuantityError;

/// Why an Etcd cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The Etcd has no name or no namespace, so it was never stored.
    #[error("the Etcd has no {field}")]
    MissingName {
        /// What it lacks.
        field: &'static str,
    },
    /// A store of a kind nobody knows.
    #[error("{field}: {provider:?} is no kind of store")]
    UnknownProvider {
        /// Where.
        field: &'static str,
        /// What it says.
        provider: String,
    },
    /// A store that needs a container and has none.
    #[error("{field}: a store of the kind {provider} needs a container")]
    MissingContainer {
        /// Where.
        field: &'static str,
        /// Its kind.
        provider: &'static str,
    },
    /// A port outside 1 to 65535.
    #[error("{field}: {port} is no port")]
    InvalidPort {
        /// Where.
        field: &'static str,
        /// What it says.
        port: i32,
    },
    /// A quantity that is no number of bytes.
    #[error("{field}")]
    InvalidQuantity {
        /// Where.
        field: &'static str,
        /// What is wrong with it.
        source: QuantityError,
    },
    /// A length of time nobody can count.
    #[error("{field}")]
    InvalidDuration {
        /// Where.
        field: &'static str,
        /// What is wrong with it.
        source: DurationError,
    },
    /// Certificates without a secret to take them from.
    #[error("{field} names no secret")]
    MissingSecret {
        /// Where.
        field: &'static str,
    },
    /// An object does not fit into JSON.
    #[error("{kind} {name} cannot be written as JSON")]
    Encode {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What the writer said.
        source: serde_json::Error,
    },
    /// The configuration of etcd does not fit into YAML.
    #[error("the configuration of etcd cannot be written as YAML")]
    EncodeConfig {
        /// What the writer said.
        source: serde_norway::Error,
    },
}
