//! Deletes a cluster and everything it created, also if it is only half started, was killed, or never existed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::home::ClusterHome;
use super::namespaces::control_groups::{self, ControlGroupError};
use super::namespaces::{find_holder, link};
use super::process_record::ProcessRecord;

/// The kernel has to end a few hundred processes and remove their mounts and network devices.
const END_DEADLINE: Duration = Duration::from_mins(3);
const MOUNTINFO: &str = "/proc/self/mountinfo";
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Marks a directory as created by a cluster: only such a directory is removed.
pub(super) const MARKER_FILE: &str = "this-is-a-mainstay-cluster";

/// Why a cluster could not be deleted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownError {
    /// The first process could not be killed.
    #[error("failed to kill process {process} of the cluster")]
    End {
        /// Process ID.
        process: i32,
        /// Underlying error.
        source: io::Error,
    },
    /// The first process was killed, but its namespaces still exist.
    #[error("processes of the cluster still exist after {END_DEADLINE:?}")]
    StillRunning,
    /// A cluster of another directory is running.
    #[error("another cluster is running on this machine, not from {}", home.display())]
    OtherClusterRunning {
        /// Directory of the cluster.
        home: PathBuf,
    },
    /// Something is still mounted in the directory.
    #[error("refusing to remove the cluster's directory: {mount} is still mounted")]
    Mounted {
        /// Mount point.
        mount: String,
    },
    /// The cgroups could not be removed.
    #[error(transparent)]
    ControlGroups(#[from] ControlGroupError),
    /// The directory could not be removed.
    #[error("failed to remove {}", home.display())]
    RemoveHome {
        /// Directory of the cluster.
        home: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// The directory contains files that no cluster created.
    #[error("refusing to remove {}: it was not created by a cluster", home.display())]
    ForeignFiles {
        /// Directory of the cluster.
        home: PathBuf,
    },
}

/// Ends the cluster of a directory and removes the directory. Succeeds if there is none.
pub async fn down(home: &ClusterHome) -> Result<(), DownError> {
    match find_holder(home) {
        Some(holder) => end_cluster(&holder).await?,
        None => wait_until_unlinked(home).await?,
    }
    control_groups::remove().await?; // succeeds only when no process is left in them
    if let Some(mount) =
        find_mounts(&fs::read_to_string(MOUNTINFO).unwrap_or_default(), home).next()
    {
        let mount = mount.to_owned();
        return Err(DownError::Mounted { mount });
    }
    remove_home(home)
}

/// Mounts in the directory of a cluster. A cluster mounts in its own namespace; a mount that is visible here has leaked,
/// and files below it must not be removed.
fn find_mounts<'a>(mounts: &'a str, home: &ClusterHome) -> impl Iterator<Item = &'a str> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| Path::new(point).starts_with(home.path()))
}

/// When process 1 dies, the kernel kills the others; its parent, `unshare`, waits for it and exits.
async fn end_cluster(holder: &ProcessRecord) -> Result<(), DownError> {
    let first = holder.child().unwrap_or_else(|| holder.clone());
    first.kill().map_err(|source| DownError::End {
        process: first.pid(),
        source,
    })?;
    let deadline = Instant::now() + END_DEADLINE;
    while holder.is_running() || link::is_linked() {
        if Instant::now() > deadline {
            return Err(DownError::StillRunning);
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// After `unshare` was killed, the processes end soon, but asynchronously.
async fn wait_until_unlinked(home: &ClusterHome) -> Result<(), DownError> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while link::is_linked() {
        if Instant::now() > deadline {
            return Err(DownError::OtherClusterRunning {
                home: home.path().to_owned(),
            });
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Removes the marker last, so that an interrupted removal can be repeated.
fn remove_home(home: &ClusterHome) -> Result<(), DownError> {
    let path = home.path();
    if path.exists() && !home.file(MARKER_FILE).exists() {
        // Without a marker the owner is unknown: `remove_dir` only removes an empty directory.
        return fs::remove_dir(path).map_err(|_| DownError::ForeignFiles {
            home: path.to_owned(),
        });
    }
    remove_contents(home).map_err(|source| DownError::RemoveHome {
        home: path.to_owned(),
        source,
    })
}

fn remove_contents(home: &ClusterHome) -> io::Result<()> {
    let entries = match fs::read_dir(home.path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else if entry.file_name() != MARKER_FILE {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_dir_all(home.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_with_foreign_files_is_not_deleted() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("thesis.txt"), "years of work").unwrap();
        let refused = remove_home(&ClusterHome::new(directory.path())).unwrap_err();
        assert!(
            matches!(refused, DownError::ForeignFiles { .. }),
            "{refused}"
        );
        assert!(directory.path().join("thesis.txt").exists());
    }

    #[test]
    fn only_mounts_below_the_directory_are_found() {
        let mounts = "36 35 98:0 / / rw - ext4 /dev/vda rw\n\
            40 36 0:30 / /cache/cluster/run/pod rw - tmpfs tmpfs rw\n\
            41 36 0:31 / /cache/cluster-of-mine rw - tmpfs tmpfs rw\n";
        let found: Vec<_> =
            find_mounts(mounts, &ClusterHome::new(Path::new("/cache/cluster"))).collect();
        assert_eq!(found, ["/cache/cluster/run/pod"]);
    }

    #[test]
    fn cluster_directory_is_removed_and_a_missing_one_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let home = ClusterHome::new(&directory.path().join("cluster"));
        fs::create_dir(home.path()).unwrap();
        fs::write(home.file(MARKER_FILE), "").unwrap();
        remove_home(&home).unwrap();
        assert!(!home.path().exists());
        remove_home(&home).unwrap();
    }
}
