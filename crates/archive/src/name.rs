//! Snapshot names: `Full-00000000-00000695-1794795243.gz`, read and written as the peer does.
//!
//! There is no manifest in a bucket: the name *is* the metadata. Revisions are zero-padded to eight
//! digits and grow wider when they must; the time is unix seconds; then a compression suffix, then `.final`.
//! An unknown suffix parses (see [`Compression::Unknown`]): dropping such an object as foreign would
//! let a restore end silently before the newest data.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use mainstay_ids::Revision;

use crate::compression::Compression;

/// The last second of the year 9999; a creation time beyond it is not a time.
const MAX_UNIX_SECONDS: i64 = 253_402_300_799;

/// Word that marks the full snapshot taken before a control plane moves away.
const FINAL: &str = "final";

/// What a snapshot object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotKind {
    /// A whole database file with its SHA-256 behind it.
    Full,
    /// The events after an earlier snapshot.
    Delta,
}

/// The name of a snapshot object, taken apart.
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
    /// How the object is compressed.
    pub compression: Compression,
    /// Taken on request before a control plane moves; otherwise an ordinary full snapshot.
    pub is_final: bool,
}

/// Why a name is not a snapshot name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotNameError {
    /// Not four fields joined by `-`.
    #[error("{name:?} has {found} fields between dashes, a snapshot name has 4")]
    FieldCount {
        /// The name as found.
        name: String,
        /// Number of fields found.
        found: usize,
    },
    /// The first field is neither `Full` nor `Incr`.
    #[error("{name:?} starts with neither Full nor Incr")]
    Kind {
        /// The name as found.
        name: String,
    },
    /// A number field is not a plain decimal number in range.
    #[error("{name:?} has {field:?} where a {what} belongs")]
    Number {
        /// The name as found.
        name: String,
        /// What the field should have been.
        what: &'static str,
        /// The field as found.
        field: String,
    },
    /// The first revision lies after the last.
    #[error("{name:?} starts at revision {start}, after its last revision {last}")]
    RevisionOrder {
        /// The name as found.
        name: String,
        /// First revision.
        start: Revision,
        /// Last revision.
        last: Revision,
    },
    /// The part after the time is not `[.<compression>][.final]`.
    #[error("{name:?} ends in {suffix:?}, which is no compression and no final mark")]
    Suffix {
        /// The name as found.
        name: String,
        /// What follows the time.
        suffix: String,
    },
}

impl SnapshotName {
    /// Name of a full snapshot that promises everything up to `last`.
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

    /// Name of a delta that holds the revisions `start` to `last`.
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

    /// Creation time as an instant. A number no calendar holds is pinned to the nearest one that does.
    pub fn created_at(&self) -> Timestamp {
        Timestamp::from_second(self.created).unwrap_or(if self.created < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        })
    }

    /// The key catalogues sort by.
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

/// A plain decimal number: digits only, no sign, not beyond `max`.
fn parse_number(name: &str, what: &'static str, field: &str, max: i64) -> Result<i64, SnapshotNameError> {
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

/// `[.<compression>][.final]` without the leading dot.
fn parse_suffixes(name: &str, suffix: Option<&str>) -> Result<(Compression, bool), SnapshotNameError> {
    let Some(suffix) = suffix else {
        return Ok((Compression::None, false));
    };
    if suffix == FINAL {
        return Ok((Compression::None, true));
    }
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
