//! The cgroup of all pods: the only resource that the kernel does not remove with the namespaces.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::configuration::CONTROL_GROUP;

/// A cgroup is busy until the kernel has removed the last of its processes.
const REMOVE_DEADLINE: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Why a cgroup operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlGroupError {
    /// The mounts of the machine could not be read.
    #[error("failed to read /proc/self/mounts")]
    Mounts(#[source] io::Error),
    /// A cgroup could not be created.
    #[error("failed to create cgroup {}", path.display())]
    Create {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// A cgroup could not be removed.
    #[error("failed to remove cgroup {}", path.display())]
    Remove {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
}

/// Creates the cgroup in every hierarchy.
pub(crate) fn create() -> Result<(), ControlGroupError> {
    for path in group_paths(used_hierarchies)? {
        fs::create_dir_all(&path).map_err(|source| ControlGroupError::Create { path, source })?;
    }
    Ok(())
}

/// Removes the cgroup and all below it; no process may run in them.
pub(crate) async fn remove() -> Result<(), ControlGroupError> {
    let deadline = Instant::now() + REMOVE_DEADLINE;
    for path in group_paths(all_hierarchies)? {
        while let Err(source) = remove_tree(&path) {
            if Instant::now() > deadline {
                return Err(ControlGroupError::Remove { path, source });
            }
            sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// Only directories: the files of a cgroup cannot be removed and need not be.
fn remove_tree(group: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(group) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

fn group_paths(
    used_hierarchies: impl Fn(&str) -> Vec<PathBuf>,
) -> Result<Vec<PathBuf>, ControlGroupError> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(ControlGroupError::Mounts)?;
    Ok(used_hierarchies(&mounts)
        .into_iter()
        .map(|root| root.join(CONTROL_GROUP))
        .collect())
}

/// Mount points of the relevant hierarchies: those of version 1, or the one of version 2.
fn used_hierarchies(mounts: &str) -> Vec<PathBuf> {
    let first = mounts_of_type(mounts, "cgroup");
    if first.is_empty() {
        mounts_of_type(mounts, "cgroup2")
    } else {
        first
    }
}

/// All hierarchies: next to version 1, the programs of a node use version 2 as well.
fn all_hierarchies(mounts: &str) -> Vec<PathBuf> {
    [
        mounts_of_type(mounts, "cgroup"),
        mounts_of_type(mounts, "cgroup2"),
    ]
    .concat()
}

fn mounts_of_type(mounts: &str, kind: &str) -> Vec<PathBuf> {
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2) == Some(&kind))
        .filter_map(|fields| fields.get(1).map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_v2_is_used_only_without_v1() {
        let second = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let both = format!("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n{second}");
        assert_eq!(used_hierarchies(&both), [Path::new("/sys/fs/cgroup/cpu")]);
        assert_eq!(
            used_hierarchies(second),
            [Path::new("/sys/fs/cgroup/unified")]
        );
        assert_eq!(
            all_hierarchies(&both).len(),
            2,
            "leftovers of both versions are removed"
        );
    }
}
