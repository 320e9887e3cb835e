//! File operations that are durable when the call returns.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Maximum directory depth. A data directory has three levels.
const MAX_DEPTH: usize = 16;

/// Creates a directory with mode 0700.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Creates a directory and its missing parents with mode 0700; it may already exist.
pub(crate) fn create_private_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)
}

/// Writes and syncs a new file with mode 0600; fails if it exists. Does not sync its directory.
pub(crate) fn write_new_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Replaces a file atomically, with mode 0600: after a crash it has either the old or the new content.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = PathBuf::from(name);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {} // a crash may have left one
    }
    write_new_file(&temporary, bytes)?;
    fs::rename(&temporary, path)?;
    // Without this sync the rename may be lost in a power failure.
    sync_dir(parent_dir(path))
}

/// The parent directory of a path; `.` if the path has none.
pub(crate) fn parent_dir(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Reads at most `limit` bytes of a file; `None` if it does not exist.
pub(crate) fn read_small_file(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Syncs the entries of a directory.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Syncs every file and directory of a tree, deepest first. An error includes the path that failed.
pub(crate) fn sync_tree(root: &Path) -> Result<(), (PathBuf, io::Error)> {
    sync_subtree(root, MAX_DEPTH)
}

fn sync_subtree(dir: &Path, depth: usize) -> Result<(), (PathBuf, io::Error)> {
    let failed = |source| (dir.to_owned(), source);
    if depth == 0 {
        return Err(failed(io::Error::other("directory tree is too deep")));
    }
    for item in fs::read_dir(dir).map_err(failed)? {
        let item = item.map_err(failed)?;
        let (path, kind) = (item.path(), item.file_type().map_err(failed)?);
        if kind.is_dir() {
            sync_subtree(&path, depth - 1)?;
        } else if kind.is_file() {
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(|source| (path, source))?;
        }
    }
    sync_dir(dir).map_err(failed)
}
