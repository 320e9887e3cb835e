//! Segment files: their names, and the gapless sequence a directory must hold.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mainstay_ids::RaftIndex;

/// Name of a segment: `<sequence>-<first index>.wal`, both as sixteen lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentName {
    /// Number of the segment; grows by one per file.
    pub sequence: u64,
    /// First entry index the segment can hold; 0 for the very first one.
    pub first_index: RaftIndex,
}

impl SegmentName {
    /// Name of the first segment of every log.
    pub const FIRST: Self = Self {
        sequence: 0,
        first_index: RaftIndex(0),
    };

    /// Parses a file name; `None` when etcd would not accept it as a segment.
    pub fn parse(name: &str) -> Option<Self> {
        let (sequence, first_index) = parse_hex_pair(name.strip_suffix(".wal")?)?;
        Some(Self {
            sequence,
            first_index: RaftIndex(first_index),
        })
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.wal", self.sequence, self.first_index.0)
    }
}

/// Parses two numbers of sixteen lower-case hex digits, joined by a dash.
pub(crate) fn parse_hex_pair(text: &str) -> Option<(u64, u64)> {
    let (left, right) = text.split_once('-')?;
    Some((parse_hex_number(left)?, parse_hex_number(right)?))
}

/// Parses a number of exactly sixteen lower-case hex digits.
pub(crate) fn parse_hex_number(text: &str) -> Option<u64> {
    let well_formed = text.len() == 16
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !well_formed {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

/// A segment found on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Parsed file name.
    pub name: SegmentName,
    /// Path of the file.
    pub path: PathBuf,
    /// File size in bytes when listed, preallocated zeros included.
    pub length: u64,
}

/// Why a directory is not a complete log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The directory cannot be read.
    #[error("list WAL segments in {}", dir.display())]
    List {
        /// Path of the directory.
        dir: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// The metadata of a segment cannot be read.
    #[error("stat {}", file.display())]
    Stat {
        /// Path of the segment.
        file: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// The directory has no segment.
    #[error("no WAL segment in {}", dir.display())]
    Empty {
        /// Path of the directory.
        dir: PathBuf,
    },
    /// A segment between two others is missing, or exists twice.
    #[error("{} follows {before}: WAL segment {expected:016x} is missing or duplicate", file.display())]
    NotContiguous {
        /// Path of the segment after the gap.
        file: PathBuf,
        /// Name of the segment before the gap.
        before: SegmentName,
        /// The expected sequence number.
        expected: u64,
    },
}

/// Lists the segments of `dir` in order, and the names of all other files.
///
/// etcd leaves `N.tmp` (the preallocated next segment) and `*.broken` (copies made by a repair) beside the segments
/// and ignores unknown files. This function ignores them too, but returns their names.
pub(crate) fn list_segments(dir: &Path) -> Result<(Vec<Segment>, Vec<OsString>), ListError> {
    let read = |source| ListError::List {
        dir: dir.to_owned(),
        source,
    };
    let mut segments = Vec::new();
    let mut other_files = Vec::new();
    for item in fs::read_dir(dir).map_err(read)? {
        let item = item.map_err(read)?;
        let file_name = item.file_name();
        let Some(name) = file_name.to_str().and_then(SegmentName::parse) else {
            other_files.push(file_name);
            continue;
        };
        let path = item.path();
        let length = fs::metadata(&path)
            .map_err(|source| ListError::Stat {
                file: path.clone(),
                source,
            })?
            .len();
        segments.push(Segment { name, path, length });
    }
    segments.sort_by_key(|segment| segment.name);
    other_files.sort();
    check_contiguous(dir, &segments)?;
    Ok((segments, other_files))
}

fn check_contiguous(dir: &Path, segments: &[Segment]) -> Result<(), ListError> {
    if segments.is_empty() {
        return Err(ListError::Empty {
            dir: dir.to_owned(),
        });
    }
    for pair in segments.windows(2) {
        let [before, after] = pair else { continue };
        let expected = before.name.sequence.wrapping_add(1);
        if after.name.sequence != expected {
            return Err(ListError::NotContiguous {
                file: after.path.clone(),
                before: before.name,
                expected,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_name_round_trips() {
        let name = SegmentName {
            sequence: 0x1f,
            first_index: RaftIndex(0xabc),
        };
        assert_eq!(name.to_string(), "000000000000001f-0000000000000abc.wal");
        assert_eq!(SegmentName::parse(&name.to_string()), Some(name));
    }

    #[test]
    fn name_etcd_would_not_write_is_not_a_segment() {
        for name in [
            "0-0.wal",
            "000000000000001F-0000000000000abc.wal",
            "+00000000000001f-0000000000000abc.wal",
            "000000000000001f-0000000000000abc.wal.broken",
            "000000000000001f.wal",
            "1.tmp",
            "",
        ] {
            assert_eq!(SegmentName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn gap_between_segments_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for sequence in [3, 4, 6] {
            let name = SegmentName {
                sequence,
                first_index: RaftIndex(sequence * 10),
            };
            fs::write(dir.path().join(name.to_string()), b"").unwrap();
        }
        let error = list_segments(dir.path()).unwrap_err();
        assert!(
            matches!(error, ListError::NotContiguous { expected: 5, .. }),
            "{error}"
        );
    }

    #[test]
    fn other_files_are_reported_and_not_read_as_segments() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "0000000000000000-0000000000000000.wal",
            "1.tmp",
            "x.wal.broken",
        ] {
            fs::write(dir.path().join(name), b"").unwrap();
        }
        let (segments, other_files) = list_segments(dir.path()).unwrap();
        assert_eq!(segments.len(), 1);
        assert_eq!(other_files, ["1.tmp", "x.wal.broken"]);
    }

    #[test]
    fn directory_without_segments_is_a_distinct_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(
            list_segments(dir.path()),
            Err(ListError::Empty { .. })
        ));
        assert!(matches!(
            list_segments(&dir.path().join("no")),
            Err(ListError::List { .. })
        ));
    }
}
