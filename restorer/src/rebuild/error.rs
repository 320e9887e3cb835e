//! Errors of a rebuild, with the object and the offset or revision.

use std::io;

use mainstay_backup::ProofError;
use mainstay_bbolt::BboltError;
use mainstay_mvcc::hash::HashError;

impl RebuildError {
    /// Returns the name of the unusable object, if one is to blame: another chain may not need it.
    pub(crate) fn failed_object(&self) -> Option<&str> {
        match self {
            Self::Proof(error) => error.failed_object(),
            Self::BaseRow { object, .. } => Some(object),
            _ => None,
        }
    }
}

/// Error of a rebuild. The file must not be used after it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebuildError {
    /// An object, or the chain, cannot be restored.
    #[error(transparent)]
    Proof(#[from] ProofError),
    #[error("{object} contains an invalid row")]
    BaseRow { object: String, source: HashError },
    /// A write to the file failed.
    #[error("failed to write the database")]
    Write { source: io::Error },
    /// A write through the database engine failed.
    #[error("failed to write the database")]
    Database { source: BboltError },
    #[error("failed to use the scratch directory")]
    Scratch { source: io::Error },
    /// Another thread failed first; its error is the one to report.
    #[error("cancelled because another thread failed")]
    Cancelled,
    #[error("the {name} thread ended without a result")]
    Thread { name: &'static str },
}
