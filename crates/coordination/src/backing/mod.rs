//! Where a document is kept: entries by name, changed only if nobody changed them meanwhile.
//!
//! [`ConfigMapBacking`] is the one of a cluster, [`FileBacking`] the one of a machine without Kubernetes.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

mod config_map;
mod file;

pub use config_map::ConfigMapBacking;
pub use file::FileBacking;

/// How long one read or write may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// A document as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The entries: text by name, as a ConfigMap has them.
    pub entries: BTreeMap<String, String>,
    /// What a write names to say what it was made from; `None` when there was no document.
    pub version: Option<String>,
}

/// What a write changes: new text, or removal. Entries that are not named stay.
pub type Edits = BTreeMap<String, Option<String>>;

/// A place for one document.
#[async_trait]
pub trait Backing: Send + Sync + 'static {
    /// Reads all of it; a document that does not exist is empty.
    async fn read(&self) -> Result<Document, BackingError>;

    /// Changes it if it is still as it was read, and creates it if there was none and still is none; otherwise
    /// [`BackingError::Conflict`].
    async fn write(&self, page: &Document, edits: &Edits) -> Result<(), BackingError>;

    /// What to call it in messages.
    fn location(&self) -> String;
}

/// Why a document could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// Somebody else wrote since it was read.
    #[error("{place} was changed by another writer")]
    Conflict {
        /// Which document.
        place: String,
    },
    /// The API server did not let it be read.
    #[error("read {place}")]
    Read {
        /// Which document.
        place: String,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// The API server did not let it be written.
    #[error("write {place}")]
    Write {
        /// Which document.
        place: String,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// Nobody answered in time.
    #[error("no answer about {place} within {DEADLINE:?}")]
    Timeout {
        /// Which document.
        place: String,
    },
    /// Another process has had the file locked all the time.
    #[error("{} is locked by another process for more than {DEADLINE:?}", path.display())]
    FileLocked {
        /// The file that is locked.
        path: PathBuf,
    },
    /// A step on a file failed.
    #[error("{step} {}", path.display())]
    File {
        /// Which step.
        step: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not a document.
    #[error(
        "{} is not a JSON object and was left alone; correct it, or remove it when nothing holds the lock",
        path.display()
    )]
    InvalidDocument {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The blocking pool is gone: the process is stopping.
    #[error("the work on {} was given up", path.display())]
    ShuttingDown {
        /// The file.
        path: PathBuf,
    },
}

impl BackingError {
    /// Whether the same call may succeed later without anybody doing something about it.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Conflict { .. } | Self::Timeout { .. } | Self::FileLocked { .. } => true,
            Self::Read { source, .. } | Self::Write { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => status.code == 429 || status.code >= 500,
                _ => true,
            },
            Self::File { .. } | Self::InvalidDocument { .. } | Self::ShuttingDown { .. } => false,
        }
    }
}
