//! Snapshot names: `Full-00000000-00000695-1794795243.gz`, read and written as etcd-backup-restore does.
//!
//! A bucket has no manifest: the name *is* the metadata. Revisions are zero-padded to eight digits and get wider
//! when needed. The time is in unix seconds. A compression suffix follows, then `.final`.
//! An unknown suffix parses (see [`Compression::Unknown`]): treating such an object as foreign would end a
//! restore silently before the newest data.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use mainstay_ids::Revision;

use crate::compression::Compression;

/// Last second of the year 9999, the largest creation time accepted.
const MAX_UNIX_SECONDS: i64 = 253_402_300_799;

/// Suffix of the full snapshot taken before a control plane migration.
const FINAL: &str = "final";

/// Content type of a snapshot object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotKind {
    /// A whole database file followed by its SHA-256.
    Full,
    /// The events since an earlier snapshot.
    Delta,
}

/// Parsed name of a snapshot object.
///
/// `last` of a full snapshot is a lower bound: the database inside may be newer than its name, never older.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotName {
    /// Full or delta.
    pub kind: SnapshotKind,
    /// First revision; 0 for every full snapshot.
    pub start: Revision,
    /// Last revision; not below `start`.
    pub last: Revision,
    /// Creation time, unix seconds.
    pub created: i64,
    /// Compression of the object.
    pub compression: Compression,
    /// Final full snapshot before a control plane migration; restored like any other.
    pub is_final: bool,
}

/// Why a name is not a snapshot name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotNameError {
    /// Not four fields joined by `-`.
    #[error("invalid snapshot name {name:?}: expected 4 fields separated by '-', found {found}")]
    FieldCount {
        /// The rejected name.
        name: String,
        /// Number of fields.
        found: usize,
    },
    /// The first field is neither `Full` nor `Incr`.
    #[error("invalid snapshot name {name:?}: must start with Full or Incr")]
    Kind {
        /// The rejected name.
        name: String,
    },
    /// A number field is not an unsigned decimal number in range.
    #[error("invalid snapshot name {name:?}: invalid {what} {field:?}")]
    Number {
        /// The rejected name.
        name: String,
        /// Meaning of the field, for example "last revision".
        what: &'static str,
        /// The rejected text.
        field: String,
    },
    /// The first revision is greater than the last.
    #[error(
        "invalid snapshot name {name:?}: first revision {start} is greater than last revision {last}"
    )]
    RevisionOrder {
        /// The rejected name.
        name: String,
        /// First revision.
        start: Revision,
        /// Last revision.
        last: Revision,
    },
    /// The part after the time is not `[.<compression>][.final]`.
    #[error(
        "invalid snapshot name {name:?}: invalid suffix {suffix:?}, expected [.<compression>][.final]"
    )]
    Suffix {
        /// The rejected name.
        name: String,
        /// Text after the creation time, without the leading dot.
        suffix: String,
    },
}

impl SnapshotName {
    /// Name of a full snapshot that contains every revision up to `last`.
    pub fn full(last: Revision, created: i64, compression: Compression) -> Self {
        Self {
            kind: SnapshotKind::Full,
            start: Revision(0),
            last,
            created,
            compression,
            is_final: false,
        }
    }

    /// Name of a delta that contains the revisions `start` to `last`.
    pub fn delta(start: Revision, last: Revision, created: i64, compression: Compression) -> Self {
        Self {
            kind: SnapshotKind::Delta,
            start,
            last,
            created,
            compression,
            is_final: false,
        }
    }

    /// Creation time as a timestamp; out-of-range seconds are clamped to the nearest valid one.
    pub fn created_at(&self) -> Timestamp {
        Timestamp::from_second(self.created).unwrap_or(if self.created < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        })
    }

    /// Sort key of catalogues: last revision, then creation time.
    pub(crate) fn sort_key(&self) -> (Revision, i64) {
        (self.last, self.created)
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            SnapshotKind::Full => "Full",
            SnapshotKind::Delta => "Incr",
        };
        let (start, last, created) = (self.start.0, self.last.0, self.created);
        write!(f, "{kind}-{start:08}-{last:08}-{created}")?;
        if let Some(suffix) = self.compression.suffix() {
            write!(f, ".{suffix}")?;
        }
        if self.is_final {
            write!(f, ".{FINAL}")
        } else {
            Ok(())
        }
    }
}

impl FromStr for SnapshotName {
    type Err = SnapshotNameError;

    fn from_str(name: &str) -> Result<Self, SnapshotNameError> {
        let fields: Vec<&str> = name.split('-').collect();
        let &[kind, start, last, tail] = fields.as_slice() else {
            return Err(SnapshotNameError::FieldCount {
                name: name.to_owned(),
                found: fields.len(),
            });
        };
        let kind = match kind {
            "Full" => SnapshotKind::Full,
            "Incr" => SnapshotKind::Delta,
            _ => {
                return Err(SnapshotNameError::Kind {
                    name: name.to_owned(),
                });
            }
        };
        let start = Revision(parse_number(name, "first revision", start, i64::MAX)?);
        let last = Revision(parse_number(name, "last revision", last, i64::MAX)?);
        if start > last {
            return Err(SnapshotNameError::RevisionOrder {
                name: name.to_owned(),
                start,
                last,
            });
        }
        let (unix, suffix) = tail
            .split_once('.')
            .map_or((tail, None), |(u, s)| (u, Some(s)));
        let created = parse_number(name, "creation time", unix, MAX_UNIX_SECONDS)?;
        let (compression, is_final) = parse_suffixes(name, suffix)?;
        Ok(Self {
            kind,
            start,
            last,
            created,
            compression,
            is_final,
        })
    }
}

/// Parses an unsigned decimal number of at most `max`; a sign is rejected.
fn parse_number(
    name: &str,
    what: &'static str,
    field: &str,
    max: i64,
) -> Result<i64, SnapshotNameError> {
    let plain = !field.is_empty() && field.bytes().all(|b| b.is_ascii_digit());
    let value = if plain {
        field.parse::<i64>().ok()
    } else {
        None
    };
    value
        .filter(|&v| v <= max)
        .ok_or_else(|| SnapshotNameError::Number {
            name: name.to_owned(),
            what,
            field: field.to_owned(),
        })
}

/// Parses `[.<compression>][.final]`, given without the leading dot.
fn parse_suffixes(
    name: &str,
    suffix: Option<&str>,
) -> Result<(Compression, bool), SnapshotNameError> {
    let Some(suffix) = suffix else {
        return Ok((Compression::None, false));
    };
    if suffix == FINAL {
        return Ok((Compression::None, true));
    }
    // `.final` comes after the compression suffix; in any other place the name is invalid.
    let (word, is_final) = match suffix.split_once('.') {
        None => (suffix, false),
        Some((word, FINAL)) => (word, true),
        Some(_) => ("", false),
    };
    if word == FINAL || word.is_empty() || !word.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(SnapshotNameError::Suffix {
            name: name.to_owned(),
            suffix: suffix.to_owned(),
        });
    }
    Ok((Compression::from_suffix(word), is_final))
}

#[cfg(test)]
mod tests;
