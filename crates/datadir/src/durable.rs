//! Files and directories that are on disk when the call returns.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Levels of directories a tree may have. A data directory has three; more is a loop or a mistake.
const MAX_DEPTH: usize = 16;

/// Makes a directory that only its owner may enter.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// The same for a directory that may be there already, and those above it.
pub(crate) fn create_private_dirs(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(path)
}

/// Writes a file that must not exist yet, for its owner only, and syncs it. Its directory is not synced.
pub(crate) fn write_new_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Puts a file of its owner's only in the place of whatever has that name: it is there whole, or as it was.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = PathBuf::from(name);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {} // left behind by a crash
    }
    write_new_file(&temporary, bytes)?;
    fs::rename(&temporary, path)?;
    sync_dir(parent_dir(path))
}

/// The directory a path is in, `.` when it names none.
pub(crate) fn parent_dir(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Reads a small file; `None` when it is not there. Not more than `limit` bytes are taken.
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

/// Syncs a directory: the names in it.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Syncs every file and directory of a tree, the deepest first. Returns the path that failed with the error.
pub(crate) fn sync_tree(root: &Path) -> Result<(), (PathBuf, io::Error)> {
    sync_subtree(root, MAX_DEPTH)
}

fn sync_subtree(dir: &Path, depth: usize) -> Result<(), (PathBuf, io::Error)> {
    let failed = |source| (dir.to_owned(), source);
    if depth == 0 {
        return Err(failed(io::Error::other("too many levels of directories")));
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
