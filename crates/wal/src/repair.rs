//! Cuts off a torn tail, after copying the segment as evidence.
//!
//! The one verb of this crate that changes a log. etcd does the same when it starts; here it can be done, and
//! seen, without starting it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::decoder::SegmentPosition;
use crate::log::{Log, LogError, LogTail};
use crate::segment::ListError;

/// What a repair did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairReport {
    /// Where the log ends now.
    pub end: SegmentPosition,
    /// Bytes that were cut off, preallocated zeros not counted.
    pub discarded_bytes: u64,
    /// The segment as it was before.
    pub broken_copy: PathBuf,
}

/// Why a log was not repaired. It is as it was, apart from a copy that may lie beside it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// There is no log.
    #[error(transparent)]
    List(#[from] ListError),
    /// The log is damaged in a way that cutting its tail does not heal.
    #[error(transparent)]
    Read(#[from] LogError),
    /// The copy cannot be made.
    #[error("copy {} to {}", file.display(), evidence.display())]
    Copy {
        /// The segment.
        file: PathBuf,
        /// The copy.
        evidence: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The segment cannot be cut.
    #[error("cut {} at byte {}", end.file.display(), end.offset)]
    Truncate {
        /// Where it should end.
        end: SegmentPosition,
        /// What the system said.
        source: io::Error,
    },
}

/// Repairs the log in `dir`; `None` when there is nothing to repair. The member must not be running.
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
    let evidence = find_free_name(&end.file);
    copy_segment(dir, &end.file, &evidence).map_err(|source| RepairError::Copy {
        file: end.file.clone(),
        evidence: evidence.clone(),
        source,
    })?;
    truncate_segment(&end).map_err(|source| RepairError::Truncate {
        end: end.clone(),
        source,
    })?;
    Ok(Some(RepairReport {
        end,
        discarded_bytes,
        broken_copy: evidence,
    }))
}

/// `<segment>.broken`, or with a number in front of `.broken` while that is taken: evidence of an earlier
/// repair is not overwritten.
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
