//! Storage of the coordination document: named entries, written only by compare-and-swap.
//!
//! [`ConfigMapBacking`] is used in Kubernetes, [`FileBacking`] without it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

mod config_map;
mod file;

pub use config_map::ConfigMapBacking;
pub use file::FileBacking;

/// Timeout of one read or write.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// A document as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Entry text by name, as in a ConfigMap.
    pub entries: BTreeMap<String, String>,
    /// The version that a write must match; `None` if the document did not exist.
    pub version: Option<String>,
}

/// Changes by entry name: `Some` sets the text, `None` removes the entry. Other entries stay unchanged.
pub type Edits = BTreeMap<String, Option<String>>;

/// Storage of one document.
#[async_trait]
pub trait Backing: Send + Sync + 'static {
    /// Reads the document; one that does not exist is empty.
    async fn read(&self) -> Result<Document, BackingError>;

    /// Applies `edits` if the document still has the version of `page`, and creates it if it did not and
    /// does not exist. Otherwise returns [`BackingError::Conflict`].
    async fn write(&self, page: &Document, edits: &Edits) -> Result<(), BackingError>;

    /// Description of the document for messages.
    fn location(&self) -> String;
}

/// Reading or writing the document failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// Another writer changed the document since it was read.
    #[error("write {place}: changed by another writer")]
    Conflict {
        /// The document.
        place: String,
    },
    /// The API server failed or rejected the read.
    #[error("read {place}")]
    Read {
        /// The document.
        place: String,
        /// The error of the Kubernetes client.
        source: Box<kube::Error>,
    },
    /// The API server failed or rejected the write.
    #[error("write {place}")]
    Write {
        /// The document.
        place: String,
        /// The error of the Kubernetes client.
        source: Box<kube::Error>,
    },
    /// The API server did not respond in time.
    #[error("access {place}: no response within {DEADLINE:?}")]
    Timeout {
        /// The document.
        place: String,
    },
    /// Another process held the file lock for the whole timeout.
    #[error("lock {}: held by another process for more than {DEADLINE:?}", path.display())]
    FileLocked {
        /// The lock file.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("{step} {}", path.display())]
    File {
        /// The operation, as a verb phrase that precedes the path.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is not a JSON object.
    #[error(
        "{} is not a JSON object and was not changed; correct it, or remove it if no process holds the lock",
        path.display()
    )]
    InvalidDocument {
        /// The file.
        path: PathBuf,
        /// The JSON error.
        source: serde_json::Error,
    },
    /// The blocking pool has shut down because the process is stopping.
    #[error("access {}: cancelled, the process is stopping", path.display())]
    ShuttingDown {
        /// The file.
        path: PathBuf,
    },
}

impl BackingError {
    /// Whether a retry may succeed without user action.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Conflict { .. } | Self::Timeout { .. } | Self::FileLocked { .. } => true,
            Self::Read { source, .. } | Self::Write { source, .. } => match source.as_ref() {
                // Other 4xx statuses, such as 403, need a change of RBAC rules or configuration.
                kube::Error::Api(status) => status.code == 429 || status.code >= 500,
                // Connection errors.
                _ => true,
            },
            Self::File { .. } | Self::InvalidDocument { .. } | Self::ShuttingDown { .. } => false,
        }
    }
}
