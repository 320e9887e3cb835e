//! `own`: changes the owner of a directory recursively, which requires root.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::{Path, PathBuf};

use clap::Args;
use mainstay_verdict::Verdict;

use crate::failure::{Classify, CommandFailure};
use crate::outcome::CommandOutcome;

/// Limit of nested directories: a backup has two or three levels, so more is a wrong path.
const MAX_DEPTH: usize = 32;

/// Flags of `own`.
#[derive(Debug, Args)]
#[command(
    long_about = "Changes the owner of a directory and everything in it to a user and a group. Runs as root, \
        before a non-root container uses a directory of the node as the store `Local`. Skips entries that \
        already have this owner, and does not follow symbolic links.",
    after_help = "Example:\n  mainstay-restorer own --owner 65532:65532 /var/mainstay/backups"
)]
pub struct OwnArgs {
    /// Numeric user and group id
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub(crate) owner: FileOwner,

    /// Directory to change
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
}

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileOwner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Error of changing owners.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ChownError {
    #[error("failed to read {}", path.display())]
    Metadata { path: PathBuf, source: io::Error },
    #[error("failed to change the owner of {} to {}:{}", path.display(), owner.uid, owner.gid)]
    Chown {
        path: PathBuf,
        owner: FileOwner,
        source: io::Error,
    },
    #[error("{} is nested deeper than {MAX_DEPTH} directories", path.display())]
    TooDeep { path: PathBuf },
}

impl Classify for ChownError {
    fn verdict(&self) -> Verdict {
        Verdict::Disk
    }
}

fn parse_owner(text: &str) -> Result<FileOwner, String> {
    let parsed = text.split_once(':').and_then(|(user, group)| {
        Some(FileOwner {
            uid: user.parse().ok()?,
            gid: group.parse().ok()?,
        })
    });
    parsed.ok_or_else(|| "expected two numbers as UID:GID".to_owned())
}

/// Changes the owner of the directory.
pub(crate) async fn run(args: OwnArgs) -> Result<CommandOutcome, CommandFailure> {
    let OwnArgs { owner, directory } = args;
    let shown = directory.display().to_string();
    let work = tokio::task::spawn_blocking(move || chown_recursive(&directory, owner, MAX_DEPTH));
    let changed = work
        .await
        .map_err(|error| CommandFailure::new(Verdict::Failed, &error))??;
    let text = format!(
        "changed the owner of {changed} entries below {shown} to {}:{}",
        owner.uid, owner.gid
    );
    let details = serde_json::json!({ "changed": changed });
    let verdict = match changed {
        0 => Verdict::Unchanged,
        _ => Verdict::Ready,
    };
    Ok(CommandOutcome::new(verdict, text, &details))
}

/// Changes the owner recursively and returns the number of changed entries.
fn chown_recursive(path: &Path, owner: FileOwner, levels: usize) -> Result<u64, ChownError> {
    let look = |source| ChownError::Metadata {
        path: path.to_owned(),
        source,
    };
    // Never follow a link: as root this could change files outside of the directory.
    let metadata = fs::symlink_metadata(path).map_err(look)?;
    let mut changed = 0;
    if metadata.is_dir() {
        if levels == 0 {
            let path = path.to_owned();
            return Err(ChownError::TooDeep { path });
        }
        for entry in fs::read_dir(path).map_err(look)? {
            changed += chown_recursive(&entry.map_err(look)?.path(), owner, levels - 1)?;
        }
    }
    // A directory after its entries: an interrupted run then leaves it with the old owner.
    if (metadata.uid(), metadata.gid()) == (owner.uid, owner.gid) {
        return Ok(changed);
    }
    let given = lchown(path, Some(owner.uid), Some(owner.gid));
    given.map_err(|source| ChownError::Chown {
        path: path.to_owned(),
        owner,
        source,
    })?;
    Ok(changed + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_two_numbers() {
        let expected = FileOwner { uid: 65532, gid: 0 };
        assert_eq!(parse_owner("65532:0"), Ok(expected));
        for wrong in ["65532", "a:b", "1:2:3", ":", "-1:1"] {
            assert!(parse_owner(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_with_the_right_owner_are_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("v2")).unwrap();
        fs::write(folder.path().join("v2/Full-1"), "x").unwrap();
        let metadata = fs::metadata(folder.path()).unwrap();
        let mine = FileOwner {
            uid: metadata.uid(),
            gid: metadata.gid(),
        };
        assert_eq!(chown_recursive(folder.path(), mine, MAX_DEPTH).unwrap(), 0);
        let error = chown_recursive(folder.path(), mine, 1).unwrap_err();
        assert!(matches!(error, ChownError::TooDeep { .. }), "{error}");
        let absent = chown_recursive(&folder.path().join("absent"), mine, 1).unwrap_err();
        assert!(matches!(absent, ChownError::Metadata { .. }), "{absent}");
    }

    #[test]
    fn chown_changes_all_files_as_root_and_fails_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "x").unwrap();
        let stranger = FileOwner {
            uid: 65532,
            gid: 65532,
        };
        match chown_recursive(folder.path(), stranger, MAX_DEPTH) {
            Ok(changed) => {
                assert_eq!(changed, 2);
                assert_eq!(fs::metadata(folder.path().join("a")).unwrap().uid(), 65532);
            }
            Err(error) => assert!(matches!(error, ChownError::Chown { .. }), "{error}"),
        }
    }
}
