//! The directories of a data directory, and the files in `snap/`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mainstay_ids::RaftIndex;
use mainstay_wal::{SnapName, parse_snap_db_index};

use super::error::VerifyError;

/// File type at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathKind {
    Absent,
    Directory,
    File,
    Other,
}

/// The file type at `path`; follows symbolic links.
pub(super) fn read_path_kind(path: &Path) -> Result<PathKind, VerifyError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(PathKind::Directory),
        Ok(found) if found.is_file() => Ok(PathKind::File),
        Ok(_) => Ok(PathKind::Other),
        Err(error) if is_not_found(&error) => Ok(PathKind::Absent),
        Err(source) => Err(VerifyError::open(path, source)),
    }
}

/// Whether the path or one of its parent directories does not exist.
pub(super) fn is_not_found(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// The paths of a data directory.
#[derive(Clone, Debug)]
pub(super) struct DirLayout {
    pub(super) member: PathBuf,
    pub(super) snap: PathBuf,
    pub(super) wal: PathBuf,
    pub(super) db: PathBuf,
}

impl DirLayout {
    pub(super) fn new(data_dir: &Path) -> Self {
        let member = data_dir.join("member");
        let (snap, wal) = (member.join("snap"), member.join("wal"));
        let db = snap.join("db");
        Self {
            member,
            snap,
            wal,
            db,
        }
    }
}

/// Files in `snap/` beside the database.
#[derive(Clone, Debug, Default)]
pub(super) struct SnapDir {
    pub(super) path: PathBuf,
    /// Raft snapshots, newest first.
    pub(super) snapshots: Vec<(SnapName, PathBuf)>,
    /// Databases received from the leader, in index order.
    pub(super) databases: Vec<(RaftIndex, PathBuf)>,
    /// Copies of broken snapshots, as etcd renames them.
    pub(super) broken_copies: Vec<PathBuf>,
}

impl SnapDir {
    pub(super) fn list(dir: &Path) -> Result<Self, VerifyError> {
        let mut snap_dir = Self {
            path: dir.to_owned(),
            ..Self::default()
        };
        let failed = |source| VerifyError::list(dir, source);
        for item in fs::read_dir(dir).map_err(failed)? {
            let item = item.map_err(failed)?;
            let file_name = item.file_name();
            // etcd's own file names are ASCII.
            let Some(name) = file_name.to_str() else {
                continue;
            };
            if let Some(snapshot) = SnapName::parse(name) {
                snap_dir.snapshots.push((snapshot, item.path()));
            } else if let Some(index) = parse_snap_db_index(name) {
                snap_dir.databases.push((index, item.path()));
            } else if name.ends_with(".snap.broken") {
                snap_dir.broken_copies.push(item.path());
            }
        }
        snap_dir.snapshots.sort_by(|(a, _), (b, _)| b.cmp(a));
        snap_dir.databases.sort();
        snap_dir.broken_copies.sort();
        Ok(snap_dir)
    }
}
