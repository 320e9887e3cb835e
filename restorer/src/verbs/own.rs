//! `own`: gives a directory to a user, which only root can.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::{Classify, Failure, Verdict};
use crate::outcome::Outcome;

/// Levels of directories a backup may have; more is a mistake.
const MOST_LEVELS: usize = 32;

/// Flags of `own`.
#[derive(Debug, Args)]
#[command(
    long_about = "Gives a directory, and everything in it, to a user and a group. Runs as root, before a \
        container that is not root uses a directory of the node as the store `Local`. What has the right \
        owner is not touched, and links are not followed.",
    after_help = "Example:\n  mainstay-restorer own --owner 65532:65532 /var/mainstay/backups"
)]
pub struct OwnArgs {
    /// User and group, as numbers
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    pub owner: Owner,

    /// The directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
}

/// Why something keeps its owner.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnError {
    /// It cannot be looked at.
    #[error("look at {}", path.display())]
    Look {
        /// What.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot be given away.
    #[error("give {} to {}:{}", path.display(), owner.user, owner.group)]
    Give {
        /// What.
        path: PathBuf,
        /// To whom.
        owner: Owner,
        /// What the system said.
        source: io::Error,
    },
    /// Directories in directories without end.
    #[error("{} is {MOST_LEVELS} levels deep", path.display())]
    Deep {
        /// The deepest.
        path: PathBuf,
    },
}

impl Classify for OwnError {
    fn verdict(&self) -> Verdict {
        Verdict::Disk
    }
}

fn owner(text: &str) -> Result<Owner, String> {
    let parsed = text.split_once(':').and_then(|(user, group)| {
        Some(Owner {
            user: user.parse().ok()?,
            group: group.parse().ok()?,
        })
    });
    parsed.ok_or_else(|| "two numbers with a colon between them are expected".to_owned())
}

/// Gives the directory away.
pub async fn run(args: OwnArgs) -> Result<Outcome, Failure> {
    let OwnArgs { owner, directory } = args;
    let shown = directory.display().to_string();
    let work = tokio::task::spawn_blocking(move || give(&directory, owner, MOST_LEVELS));
    let changed = work
        .await
        .map_err(|error| Failure::new(Verdict::Failed, &error))??;
    let text = format!(
        "{shown} belongs to {}:{}: {changed} changed",
        owner.user, owner.group
    );
    let details = serde_json::json!({ "changed": changed });
    let verdict = match changed {
        0 => Verdict::Unchanged,
        _ => Verdict::Ready,
    };
    Ok(Outcome::new(verdict, text, &details))
}

/// How many entries changed their owner. Directories come last: one that has the right owner was finished.
fn give(path: &Path, owner: Owner, levels: usize) -> Result<u64, OwnError> {
    let look = |source| OwnError::Look {
        path: path.to_owned(),
        source,
    };
    let metadata = fs::symlink_metadata(path).map_err(look)?;
    let mut changed = 0;
    if metadata.is_dir() {
        if levels == 0 {
            let path = path.to_owned();
            return Err(OwnError::Deep { path });
        }
        for entry in fs::read_dir(path).map_err(look)? {
            changed += give(&entry.map_err(look)?.path(), owner, levels - 1)?;
        }
    }
    if (metadata.uid(), metadata.gid()) == (owner.user, owner.group) {
        return Ok(changed);
    }
    let given = lchown(path, Some(owner.user), Some(owner.group));
    given.map_err(|source| OwnError::Give {
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
    fn an_owner_is_two_numbers() {
        let expected = Owner {
            user: 65532,
            group: 0,
        };
        assert_eq!(owner("65532:0"), Ok(expected));
        for wrong in ["65532", "a:b", "1:2:3", ":", "-1:1"] {
            assert!(owner(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_has_the_right_owner_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("v2")).unwrap();
        fs::write(folder.path().join("v2/Full-1"), "x").unwrap();
        let metadata = fs::metadata(folder.path()).unwrap();
        let mine = Owner {
            user: metadata.uid(),
            group: metadata.gid(),
        };
        assert_eq!(give(folder.path(), mine, MOST_LEVELS).unwrap(), 0);
        let error = give(folder.path(), mine, 1).unwrap_err();
        assert!(matches!(error, OwnError::Deep { .. }), "{error}");
        let absent = give(&folder.path().join("absent"), mine, 1).unwrap_err();
        assert!(matches!(absent, OwnError::Look { .. }), "{absent}");
    }

    #[test]
    fn root_gives_everything_away_and_others_are_told_what_they_cannot() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "x").unwrap();
        let stranger = Owner {
            user: 65532,
            group: 65532,
        };
        match give(folder.path(), stranger, MOST_LEVELS) {
            Ok(changed) => {
                assert_eq!(changed, 2);
                assert_eq!(fs::metadata(folder.path().join("a")).unwrap().uid(), 65532);
            }
            Err(error) => assert!(matches!(error, OwnError::Give { .. }), "{error}"),
        }
    }
}
