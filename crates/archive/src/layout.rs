//! Object keys of snapshots: `<prefix>/v2/<name>`, and the older `<prefix>/v1/Backup-<unix>/<name>`.
//!
//! Prefixes match whole path segments, so `a/etcd` excludes `a/etcd-events`, and `v1` inside a prefix has no
//! meaning. A foreign key is kept with a reason, never dropped.

use std::fmt;

use crate::name::{SnapshotName, SnapshotNameError};

/// Digits of the part number in a chunk key.
const PART_DIGITS: usize = 10;

/// Which of the two folder layouts a key follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayoutVersion {
    /// One folder per full snapshot; read only.
    V1,
    /// One flat folder; all new snapshots use it.
    V2,
}

/// Classification of an object key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A snapshot object.
    Snapshot {
        /// Parsed object name.
        name: SnapshotName,
        /// Folder layout of the key.
        layout: LayoutVersion,
    },
    /// One part of a snapshot that was uploaded in parts.
    Chunk {
        /// Name of the snapshot this part belongs to.
        name: SnapshotName,
        /// Part number, starting at 1.
        part: u64,
        /// Folder layout of the key.
        layout: LayoutVersion,
    },
    /// Not a snapshot of this prefix.
    Foreign(ForeignReason),
}

/// Why a listed key is not a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignReason {
    /// The key is not below `<prefix>/v1/` or `<prefix>/v2/`.
    OutsidePrefix,
    /// The folders below `v1/` or `v2/` do not follow the layout.
    UnknownFolder,
    /// The last segment is not a snapshot name.
    InvalidName(SnapshotNameError),
}

impl fmt::Display for ForeignReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutsidePrefix => f.write_str("outside the v1 and v2 folders of the prefix"),
            Self::UnknownFolder => f.write_str("in an unexpected folder"),
            Self::InvalidName(error) => error.fmt(f),
        }
    }
}

/// Returns the key prefixes to list, each ending in `/`, current layout first.
pub fn list_prefixes(prefix: &str) -> Vec<String> {
    vec![
        version_folder(prefix, LayoutVersion::V2),
        version_folder(prefix, LayoutVersion::V1),
    ]
}

/// Returns the key for a new snapshot, always in the current layout.
pub fn object_key(prefix: &str, name: &SnapshotName) -> String {
    format!("{}{name}", version_folder(prefix, LayoutVersion::V2))
}

/// Classifies `key` relative to the store prefix `prefix`.
pub fn classify_key(prefix: &str, key: &str) -> KeyKind {
    let below = |layout| key.strip_prefix(version_folder(prefix, layout).as_str());
    if let Some(rest) = below(LayoutVersion::V2) {
        return classify_name(rest, LayoutVersion::V2);
    }
    let Some(rest) = below(LayoutVersion::V1) else {
        return KeyKind::Foreign(ForeignReason::OutsidePrefix);
    };
    match rest.split_once('/') {
        Some((backup, rest)) if is_backup_folder(backup) => classify_name(rest, LayoutVersion::V1),
        _ => KeyKind::Foreign(ForeignReason::UnknownFolder),
    }
}

/// `<prefix>/v2/`. Drops empty and `.` segments of the prefix, as joining path segments does.
fn version_folder(prefix: &str, layout: LayoutVersion) -> String {
    let version = match layout {
        LayoutVersion::V1 => "v1",
        LayoutVersion::V2 => "v2",
    };
    let mut path = String::with_capacity(prefix.len() + 4);
    for segment in prefix.split('/').filter(|s| !s.is_empty() && *s != ".") {
        path.push_str(segment);
        path.push('/');
    }
    path.push_str(version);
    path.push('/');
    path
}

/// `<name>` or `<name>/<part>`.
fn classify_name(rest: &str, layout: LayoutVersion) -> KeyKind {
    let (name, part) = rest
        .split_once('/')
        .map_or((rest, None), |(n, p)| (n, Some(p)));
    let part = match part.map(parse_part_number) {
        None => None,
        Some(Some(part)) => Some(part),
        Some(None) => return KeyKind::Foreign(ForeignReason::UnknownFolder),
    };
    match (name.parse::<SnapshotName>(), part) {
        (Err(error), _) => KeyKind::Foreign(ForeignReason::InvalidName(error)),
        (Ok(name), None) => KeyKind::Snapshot { name, layout },
        (Ok(name), Some(part)) => KeyKind::Chunk { name, part, layout },
    }
}

fn parse_part_number(text: &str) -> Option<u64> {
    let plain = text.len() == PART_DIGITS && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

fn is_backup_folder(segment: &str) -> bool {
    let unix = segment.strip_prefix("Backup-").unwrap_or_default();
    !unix.is_empty() && unix.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests;
