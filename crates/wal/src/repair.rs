//! Cuts off a torn tail, after copying the segment as evidence.
//!
//! The one verb of this crate that changes a log. etcd does the same when it starts; here it can be done, and
//! seen, without starting it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::decoder::At;
use crate::log::{Log, LogError, Tail};
use crate::segment::ListError;

/// What a repair did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairReport {
    /// Where the log ends now.
    pub end: At,
    /// Bytes that were cut off, preallocated zeros not counted.
    pub discarded_bytes: u64,
    /// The segment as it was before.
    pub evidence: PathBuf,
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
    Cut {
        /// Where it should end.
        end: At,
        /// What the system said.
        source: io::Error,
    },
}

/// Repairs the log in `dir`; `None` when there is nothing to repair. The member must not be running.
pub fn repair(dir: &Path) -> Result<Option<RepairReport>, RepairError> {
    let (end, discarded_bytes) = match Log::open(dir)?.read()?.tail {
        Tail::Clean => return Ok(None),
        Tail::Torn {
            at,
            discarded_bytes,
            ..
        }
        | Tail::Trailing {
            at,
            discarded_bytes,
        } => (at, discarded_bytes),
    };
    let evidence = free_name(&end.file);
    copy(dir, &end.file, &evidence).map_err(|source| RepairError::Copy {
        file: end.file.clone(),
        evidence: evidence.clone(),
        source,
    })?;
    cut(&end).map_err(|source| RepairError::Cut {
        end: end.clone(),
        source,
    })?;
    Ok(Some(RepairReport {
        end,
        discarded_bytes,
        evidence,
    }))
}

/// `<segment>.broken`, or with a number in front of `.broken` while that is taken: evidence of an earlier
/// repair is not overwritten.
fn free_name(segment: &Path) -> PathBuf {
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

fn copy(dir: &Path, segment: &Path, evidence: &Path) -> io::Result<()> {
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

fn cut(end: &At) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(&end.file)?;
    file.set_len(end.offset)?;
    file.sync_all()
}
