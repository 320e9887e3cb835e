//! Puts a newly built directory in the place of an old one without ever having neither.
//!
//! ```text
//! Staging::create ─► <target>.restoring-<pid>  marked as unfinished, locked by its maker
//!        build    ─► files written by the caller
//!        commit   ─► sync ─► mark complete ─► exchange the two names ─► old → <target>.before-<time> ─► unmark
//! ```
//!
//! The mark is a file inside the staging directory. Its lock says that the maker lives, its content whether the
//! directory is complete and what the old one is to be called. It moves with the directory, so after a crash
//! [`recover`] can tell the new directory from the old whatever their names are, and finishes or discards.
//!
//! Where the file system cannot exchange two names, two renames take its place; a crash between them leaves
//! no target, but a complete new directory that the next run moves in. A new directory is moved in and never
//! the old one moved back: the old one was good for nothing but evidence when a restore was asked for.

mod aside;
mod error;
mod mark;
mod place;
mod recovery;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use self::mark::StagingMarker;
use self::place::{TargetState, SwapTarget};
use crate::durable;

pub use self::aside::{PreviousDataDir, list_previous_data_dirs};
pub use self::error::SwapError;
pub use self::recovery::{SwapRecovery, recover_swap};

/// Names tried for a staging directory; more than one is taken only by directories that are not ours.
const MAX_NAME_ATTEMPTS: u32 = 64;

/// Exchanges two names in one step. A file system that cannot answers so.
type ExchangeFn = fn(&Path, &Path) -> Result<(), Errno>;

fn exchange_names(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

/// What is about to happen; a crash may come before any of these.
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

/// Told each [`Step`] before it happens.
type StepHook<'a> = &'a mut dyn FnMut(SwapStep);

/// A directory being built beside its target. Dropping it removes what was built and leaves the target as it is.
#[derive(Debug)]
pub struct StagingDir {
    target: SwapTarget,
    dir: PathBuf,
    marker: StagingMarker,
    /// Whether `dir` still is the new directory, to be removed when this is dropped.
    owns_dir: bool,
}

/// A swap that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedSwap {
    /// The new directory, by its real path.
    pub target: PathBuf,
    /// Where the old one is kept; `None` when there was none or it was empty.
    pub previous_dir: Option<PathBuf>,
}

impl StagingDir {
    /// Makes an empty directory beside `target`, after cleaning up what crashed runs left there. Directories above
    /// the target are made when they are missing.
    ///
    /// # Errors
    ///
    /// When another run is building for the same target, when etcd has the target's database open, or when
    /// the target is not a directory that can be renamed.
    pub fn create(target: &Path) -> Result<Self, SwapError> {
        SwapTarget::create_parent(target)?;
        recover_swap(target)?;
        let place = SwapTarget::resolve(target)?;
        place.read_state()?;
        place.ensure_not_in_use()?;
        for attempt in 0..MAX_NAME_ATTEMPTS {
            let dir = place.staging_path(attempt);
            match durable::create_private_dir(&dir) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(source) => return Err(SwapError::create(dir, source)),
            }
            match StagingMarker::create(&dir) {
                Ok(Some(mark)) => {
                    return Ok(Self {
                        target: place,
                        dir,
                        marker: mark,
                        owns_dir: true,
                    });
                }
                Ok(None) => {} // taken for a leftover by another run between the two calls
                Err(source) => {
                    let _best_effort = fs::remove_dir_all(&dir);
                    return Err(SwapError::create(dir, source));
                }
            }
        }
        Err(SwapError::NoFreeName {
            target: place.path,
        })
    }

    /// Where to build.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The directory that will be replaced, by its real path.
    pub fn target(&self) -> &Path {
        &self.target.path
    }

    /// Syncs what was built and puts it in the target's place. The old directory is kept as
    /// `<target>.before-<now>`.
    ///
    /// # Errors
    ///
    /// Up to the swap an error leaves the target untouched and removes the new directory. Errors behind it
    /// say so ([`SwapError::is_in_place`]): the new directory serves, and [`recover`] tidies up.
    pub fn commit(self, now: Timestamp) -> Result<CommittedSwap, SwapError> {
        self.commit_with(now, exchange_names, &mut |_| {})
    }

    /// Removes what was built, and says when that fails.
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
        durable::sync_tree(&self.dir).map_err(|(path, source)| SwapError::Sync { path, source })?;
        let state = self.target.read_state()?;
        let _until_swapped = self.target.lock_database()?;
        let before = self.target.free_previous_name(now);
        watch(SwapStep::WriteMarker);
        self.marker
            .mark_complete(&before)
            .and_then(|()| durable::sync_dir(&self.dir))
            .map_err(|source| SwapError::Marker {
                dir: self.dir.clone(),
                source,
            })?;
        self.target.sync_parent()?;
        let kept = match state {
            TargetState::Missing => self.move_into_place(watch).map(|()| None)?,
            TargetState::Directory => self.replace_target(&before, exchange, watch)?,
        };
        watch(SwapStep::RemoveMarker);
        self.target.remove_marker()?;
        watch(SwapStep::Done);
        Ok(CommittedSwap {
            target: self.target.path.clone(),
            previous_dir: kept,
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
            // The old one back; failing that, both stay for `recover`.
            self.owns_dir = fs::rename(kept, &self.target.path).is_ok();
        }
        moved.map(|()| kept)
    }

    fn move_into_place(&mut self, watch: StepHook<'_>) -> Result<(), SwapError> {
        watch(SwapStep::MoveIntoPlace);
        fs::rename(&self.dir, &self.target.path)
            .map_err(|source| self.target.rename_error(&self.dir, source))?;
        self.owns_dir = false;
        self.target.sync_parent().map_err(SwapError::into_after_swap)
    }
}

/// Puts a directory away as `<target>.before-<now>`, so that nothing is at its place. Returns where it is kept; `None` when
/// there was nothing to keep.
///
/// # Errors
///
/// When another run is building for the same target, or etcd has its database open.
pub fn rename_to_previous(target: &Path, now: Timestamp) -> Result<Option<PathBuf>, SwapError> {
    recover_swap(target)?;
    let place = match SwapTarget::resolve(target) {
        Err(SwapError::Inspect { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None); // not even the directory above exists
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
