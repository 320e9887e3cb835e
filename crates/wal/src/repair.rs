//! Truncates a torn tail after copying the segment for later analysis.
//!
//! This is the only function of the crate that changes a log. etcd does the same at start; this makes the repair
//! possible, and visible, without starting etcd.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::decoder::SegmentPosition;
use crate::log::{Log, LogError, LogTail};
use crate::segment::ListError;

/// Result of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairReport {
    /// New end of the log.
    pub end: SegmentPosition,
    /// Number of bytes discarded, without preallocated zeros.
    pub discarded_bytes: u64,
    /// Path of the copy of the original segment.
    pub broken_copy: PathBuf,
}

/// Why a log was not repaired. The log is unchanged; a copy of the segment may exist.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The segments cannot be listed.
    #[error(transparent)]
    List(#[from] ListError),
    /// The log is corrupt in a way that truncating its tail does not repair.
    #[error(transparent)]
    Read(#[from] LogError),
    /// Copying the segment failed.
    #[error("copy {} to {}", file.display(), evidence.display())]
    Copy {
        /// Path of the segment.
        file: PathBuf,
        /// Path of the copy.
        evidence: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// Truncating the segment failed.
    #[error("truncate {} at byte {}", end.file.display(), end.offset)]
    Truncate {
        /// Intended end of the log.
        end: SegmentPosition,
        /// I/O error.
        source: io::Error,
    },
}

/// Repairs the log in `dir`; returns `None` when it needs no repair. The member must not be running.
pub fn repair(dir: &Path) -> Result<Option<RepairReport>, RepairError> {
    let (end, discarded_bytes) = match Log::open(dir)?.read()?.tail {
        LogTail::Clean => return Ok(None),
        LogTail::Torn {
            at,
            discarded_bytes,
            ..
        }
        | LogTail::Trailing {
            at,
            discarded_bytes,
        } => (at, discarded_bytes),
    };
    // Copy and sync before truncating: a crash in between must not lose the only copy.
    let broken_copy = find_free_name(&end.file);
    copy_segment(dir, &end.file, &broken_copy).map_err(|source| RepairError::Copy {
        file: end.file.clone(),
        evidence: broken_copy.clone(),
        source,
    })?;
    truncate_segment(&end).map_err(|source| RepairError::Truncate {
        end: end.clone(),
        source,
    })?;
    Ok(Some(RepairReport {
        end,
        discarded_bytes,
        broken_copy,
    }))
}

/// Returns `<segment>.broken`, etcd's name for such copies, or `<segment>.<number>.broken` when it exists: copies of
/// earlier repairs are kept.
fn find_free_name(segment: &Path) -> PathBuf {
    let with = |suffix: String| {
        let mut name = segment.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let plain = with(".broken".to_owned());
    if !plain.exists() {
        return plain;
    }
    (1..=u32::MAX)
        .map(|number| with(format!(".{number}.broken")))
        .find(|path| !path.exists())
        .unwrap_or(plain)
}

fn copy_segment(dir: &Path, segment: &Path, evidence: &Path) -> io::Result<()> {
    let mut input = File::open(segment)?;
    let mode = input.metadata()?.permissions().mode();
    let mut output = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode & 0o777)
        .open(evidence)?;
    io::copy(&mut input, &mut output)?;
    output.sync_all()?;
    File::open(dir)?.sync_all()
}

fn truncate_segment(end: &SegmentPosition) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(&end.file)?;
    file.set_len(end.offset)?;
    file.sync_all()
}
