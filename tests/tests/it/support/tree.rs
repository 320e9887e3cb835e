//! The content of a directory, for byte-wise comparisons.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// All files of a directory with size and hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileTree(pub(crate) BTreeMap<PathBuf, (u64, String)>);

impl FileTree {
    /// Reads a directory; `None` if it does not exist.
    pub(crate) fn read(root: &Path) -> Option<Self> {
        let mut files = BTreeMap::new();
        root.is_dir().then(|| {
            collect(root, root, &mut files);
            Self(files)
        })
    }

    /// Total size of all files in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().map(|(bytes, _)| bytes).sum()
    }
}

fn collect(root: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, (u64, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let content = fs::read(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().to_owned();
            files.insert(
                name,
                (content.len() as u64, hex::encode(Sha256::digest(&content))),
            );
        }
    }
}
