//! Replaces a data directory with a newly built one; one of the two exists at any time.
//!
//! ```text
//! Staging::create ─► <target>.restoring-<pid>  marked as incomplete, locked by its creator
//!        build    ─► files written by the caller
//!        commit   ─► sync ─► mark complete ─► exchange names ─► old → <target>.before-<time> ─► remove marker
//! ```
//!
//! The marker is a file inside the staging directory. Its lock shows that the creator is alive, its content
//! whether the directory is complete and the name for the previous one. It moves with the directory, so after
//! a crash [`recover_swap`] can distinguish new and old regardless of their names, and completes or discards.
//!
//! If the file system cannot exchange two names, two renames are used. A crash between them leaves no target,
//! but a complete new directory, which the next run moves into place. Recovery never moves the old directory
//! back: a restore was requested because it is unusable.

mod error;
mod marker;
mod previous_dirs;
mod recovery;
mod swap_target;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use self::marker::StagingMarker;
use self::swap_target::{SwapTarget, TargetState};
use crate::durable_fs;

pub use self::error::SwapError;
pub use self::previous_dirs::{PreviousDataDir, list_previous_data_dirs};
pub use self::recovery::{SwapRecovery, recover_swap};

/// Names to try for a staging directory; only foreign directories can occupy them.
const MAX_NAME_ATTEMPTS: u32 = 64;

/// Exchanges two names atomically, if the file system supports it.
type ExchangeFn = fn(&Path, &Path) -> Result<(), Errno>;

fn exchange_names(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

/// Steps of a swap, reported before each; tests simulate a crash at each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SwapStep {
    Sync,
    WriteMarker,
    ExchangeNames,
    RenameToPrevious,
    MoveIntoPlace,
    RemoveMarker,
    Discard,
    Done,
}

/// Called with each [`SwapStep`] before it runs.
type StepHook<'a> = &'a mut dyn FnMut(SwapStep);

/// A directory being built beside its target. Dropping it removes it and leaves the target unchanged.
#[derive(Debug)]
pub struct StagingDir {
    target: SwapTarget,
    dir: PathBuf,
    marker: StagingMarker,
    /// Whether `dir` is still the new directory, which drop removes.
    owns_dir: bool,
}

/// A completed swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedSwap {
    /// Canonical path of the new directory.
    pub target: PathBuf,
    /// Path of the previous data directory; `None` if there was none or it was empty.
    pub previous_dir: Option<PathBuf>,
}

impl StagingDir {
    /// Recovers from crashed runs, then creates an empty directory beside `target`. Creates missing parents.
    ///
    /// # Errors
    ///
    /// If another process is replacing the same target, if etcd has the target's database open, or if the
    /// target cannot be renamed.
    pub fn create(target: &Path) -> Result<Self, SwapError> {
        SwapTarget::create_parent(target)?;
        // A complete directory of a crashed run may still have to move into place.
        recover_swap(target)?;
        let place = SwapTarget::resolve(target)?;
        place.read_state()?;
        place.ensure_not_in_use()?;
        for attempt in 0..MAX_NAME_ATTEMPTS {
            let dir = place.staging_path(attempt);
            match durable_fs::create_private_dir(&dir) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(source) => return Err(SwapError::create(dir, source)),
            }
            match StagingMarker::create(&dir) {
                Ok(Some(marker)) => {
                    return Ok(Self {
                        target: place,
                        dir,
                        marker,
                        owns_dir: true,
                    });
                }
                Ok(None) => {} // another process removed it as a leftover before it was locked
                Err(source) => {
                    let _best_effort = fs::remove_dir_all(&dir);
                    return Err(SwapError::create(dir, source));
                }
            }
        }
        Err(SwapError::NoFreeName { target: place.path })
    }

    /// The directory to build in.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Canonical path of the directory to replace.
    pub fn target(&self) -> &Path {
        &self.target.path
    }

    /// Syncs the new directory and replaces the target with it. Keeps the previous one as
    /// `<target>.before-<now>`.
    ///
    /// # Errors
    ///
    /// An error before the swap leaves the target unchanged and removes the new directory. After the swap
    /// [`SwapError::is_in_place`] is true: the new directory is in use, and [`recover_swap`] cleans up.
    pub fn commit(self, now: Timestamp) -> Result<CommittedSwap, SwapError> {
        self.commit_with(now, exchange_names, &mut |_| {})
    }

    /// Removes the new directory and reports a failure to do so.
    pub fn discard(mut self) -> Result<(), SwapError> {
        self.owns_dir = false;
        self.marker
            .remove_dir(&self.dir)
            .map_err(|source| SwapError::RemoveLeftovers {
                dir: self.dir.clone(),
                source,
            })
    }

    fn commit_with(
        mut self,
        now: Timestamp,
        exchange: ExchangeFn,
        watch: StepHook<'_>,
    ) -> Result<CommittedSwap, SwapError> {
        watch(SwapStep::Sync);
        durable_fs::sync_tree(&self.dir)
            .map_err(|(path, source)| SwapError::Sync { path, source })?;
        let state = self.target.read_state()?;
        // Held until the swap is done: etcd must not start on the old database meanwhile.
        let _until_swapped = self.target.lock_database()?;
        let before = self.target.free_previous_name(now);
        watch(SwapStep::WriteMarker);
        self.marker
            .mark_complete(&before)
            .and_then(|()| durable_fs::sync_dir(&self.dir))
            .map_err(|source| SwapError::Marker {
                dir: self.dir.clone(),
                source,
            })?;
        // The marker must be durable before the swap, or recovery would discard the new directory.
        self.target.sync_parent()?;
        let previous_dir = match state {
            TargetState::Missing => self.move_into_place(watch).map(|()| None)?,
            TargetState::Directory => self.replace_target(&before, exchange, watch)?,
        };
        watch(SwapStep::RemoveMarker);
        self.target.remove_marker()?;
        watch(SwapStep::Done);
        Ok(CommittedSwap {
            target: self.target.path.clone(),
            previous_dir,
        })
    }

    fn replace_target(
        &mut self,
        before: &OsStr,
        exchange: ExchangeFn,
        watch: StepHook<'_>,
    ) -> Result<Option<PathBuf>, SwapError> {
        watch(SwapStep::ExchangeNames);
        match exchange(&self.dir, &self.target.path) {
            Ok(()) => self.owns_dir = false,
            // Not every file system supports RENAME_EXCHANGE.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return self.rename_twice(before, watch);
            }
            Err(errno) => return Err(self.target.rename_error(&self.dir, errno.into())),
        }
        self.target
            .sync_parent()
            .map_err(SwapError::into_after_swap)?;
        watch(SwapStep::RenameToPrevious);
        self.target
            .rename_to_previous(&self.dir, before)
            .map_err(SwapError::into_after_swap)
    }

    fn rename_twice(
        &mut self,
        before: &OsStr,
        watch: StepHook<'_>,
    ) -> Result<Option<PathBuf>, SwapError> {
        watch(SwapStep::RenameToPrevious);
        let kept = self.target.rename_to_previous(&self.target.path, before)?;
        let moved = self.move_into_place(watch);
        if let (Err(_), true, Some(kept)) = (&moved, self.owns_dir, &kept) {
            // Undo the first rename. If that fails, keep both directories for `recover`.
            self.owns_dir = fs::rename(kept, &self.target.path).is_ok();
        }
        moved.map(|()| kept)
    }

    fn move_into_place(&mut self, watch: StepHook<'_>) -> Result<(), SwapError> {
        watch(SwapStep::MoveIntoPlace);
        fs::rename(&self.dir, &self.target.path)
            .map_err(|source| self.target.rename_error(&self.dir, source))?;
        self.owns_dir = false;
        self.target
            .sync_parent()
            .map_err(SwapError::into_after_swap)
    }
}

/// Renames the data directory to `<target>.before-<now>`. Returns the new path; `None` if the directory was
/// missing or empty.
///
/// # Errors
///
/// If another process is replacing the same target, or etcd has its database open.
pub fn rename_to_previous(target: &Path, now: Timestamp) -> Result<Option<PathBuf>, SwapError> {
    recover_swap(target)?;
    let place = match SwapTarget::resolve(target) {
        Err(SwapError::Inspect { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None); // the parent directory does not exist either
        }
        resolved => resolved?,
    };
    if place.read_state()? == TargetState::Missing {
        return Ok(None);
    }
    let _until_away = place.lock_database()?;
    place.rename_to_previous(&place.path, &place.free_previous_name(now))
}

impl Drop for StagingDir {
    fn drop(&mut self) {
        if self.owns_dir {
            let _left_for_recovery = self.marker.remove_dir(&self.dir);
        }
    }
}
