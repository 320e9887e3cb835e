//! Why a release could not be packed.

use std::io;
use std::path::{Path, PathBuf};

use crate::cluster::image::{CatalogueError, ImageError, LibraryError};
use crate::cluster::run::RunError;

/// Why a release could not be packed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// An image could not be described.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// An image could not be written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The libraries of a program could not be determined.
    #[error(transparent)]
    Libraries(#[from] LibraryError),
    /// objcopy failed.
    #[error("failed to separate the symbols of {}", program.display())]
    Symbols {
        /// The program.
        program: PathBuf,
        /// Underlying error.
        source: RunError,
    },
    /// Helm failed.
    #[error("failed to check the chart {} with Helm", chart.display())]
    Helm {
        /// The packed chart.
        chart: PathBuf,
        /// Underlying error.
        source: RunError,
    },
    /// The chart has another version.
    #[error("charts/etcd-mainstay/Chart.yaml: expected the line {line:?}")]
    ChartVersion {
        /// Missing line.
        line: String,
    },
    /// The values of the chart have no place for a digest.
    #[error("charts/etcd-mainstay/values.yaml: no digest below the repository {program}")]
    NoDigest {
        /// Name of the program.
        program: String,
    },
    /// A file contains a path of this machine.
    #[error("{} contains the path {found}", path.display())]
    MachinePath {
        /// Affected file.
        path: PathBuf,
        /// The path found.
        found: String,
    },
    /// The time of the commit cannot be represented.
    #[error("{epoch} is not a time in seconds since 1970")]
    Epoch {
        /// The number.
        epoch: u64,
    },
    /// A file could not be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
}

impl ReleaseError {
    pub(super) fn write(path: &Path, source: io::Error) -> Self {
        Self::Write {
            path: path.to_owned(),
            source,
        }
    }
}
