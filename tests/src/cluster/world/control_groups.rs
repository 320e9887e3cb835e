//! The control group of all pods: the one thing a world cannot take along when it ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::super::configuration::CONTROL_GROUP;

/// A group is busy until the kernel is done with the last of its processes.
const REMOVE_DEADLINE: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Why a control group is not as it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlGroupError {
    /// The mounts of the machine are unknown.
    #[error("read the mounts of this machine")]
    Mounts(#[source] io::Error),
    /// It could not be made.
    #[error("make control group {}", path.display())]
    Create {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not go.
    #[error("remove control group {}", path.display())]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Makes it in every hierarchy.
pub(crate) fn create() -> Result<(), ControlGroupError> {
    for path in group_paths(used_hierarchies)? {
        fs::create_dir_all(&path).map_err(|source| ControlGroupError::Create { path, source })?;
    }
    Ok(())
}

/// Removes it with all groups below it; nothing runs in them any more.
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

/// Files of a control group cannot be removed and need not be.
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

fn group_paths(used_hierarchies: impl Fn(&str) -> Vec<PathBuf>) -> Result<Vec<PathBuf>, ControlGroupError> {
    let mounts = fs::read_to_string("/proc/self/mounts").map_err(ControlGroupError::Mounts)?;
    Ok(used_hierarchies(&mounts)
        .into_iter()
        .map(|root| root.join(CONTROL_GROUP))
        .collect())
}

/// Where the hierarchies that count are mounted: those of the first version, or the only one of the second.
fn used_hierarchies(mounts: &str) -> Vec<PathBuf> {
    let first = mounts_of_type(mounts, "cgroup");
    if first.is_empty() {
        mounts_of_type(mounts, "cgroup2")
    } else {
        first
    }
}

/// All of them: beside the first version, the programs of a node use the second one as well.
fn all_hierarchies(mounts: &str) -> Vec<PathBuf> {
    [mounts_of_type(mounts, "cgroup"), mounts_of_type(mounts, "cgroup2")].concat()
}

fn mounts_of_type(mounts: &str, wanted: &str) -> Vec<PathBuf> {
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2) == Some(&wanted))
        .filter_map(|fields| fields.get(1).map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_version_counts_only_where_it_is_alone() {
        let second = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let both = format!("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n{second}");
        assert_eq!(used_hierarchies(&both), [Path::new("/sys/fs/cgroup/cpu")]);
        assert_eq!(used_hierarchies(second), [Path::new("/sys/fs/cgroup/unified")]);
        assert_eq!(
            all_hierarchies(&both).len(),
            2,
            "what is left in either goes"
        );
    }
}
