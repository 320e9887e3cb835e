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

use self::mark::Mark;
use self::place::{Occupancy, Place};
use crate::durable;

pub use self::aside::{Aside, put_aside};
pub use self::error::SwapError;
pub use self::recovery::{Recovery, recover};

/// Names tried for a staging directory; more than one is taken only by directories that are not ours.
const ATTEMPTS: u32 = 64;

/// Exchanges two names in one step. A file system that cannot answers so.
type Exchange = fn(&Path, &Path) -> Result<(), Errno>;

fn exchange_names(one: &Path, other: &Path) -> Result<(), Errno> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)
}

/// What is about to happen; a crash may come before any of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Sync,
    Mark,
    Exchange,
    SetAside,
    MoveIn,
    Unmark,
    Discard,
    Done,
}

/// Told each [`Step`] before it happens.
type Watch<'a> = &'a mut dyn FnMut(Step);

/// A directory being built beside its target. Dropping it removes what was built and leaves the target as it is.
#[derive(Debug)]
pub struct Staging {
    place: Place,
    dir: PathBuf,
    mark: Mark,
    /// Whether `dir` still is the new directory, to be removed when this is dropped.
    owns_dir: bool,
}

/// A swap that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The new directory, by its real path.
    pub target: PathBuf,
    /// Where the old one is kept; `None` when there was none or it was empty.
    pub kept: Option<PathBuf>,
}

impl Staging {
    /// Makes an empty directory beside `target`, after cleaning up what crashed runs left there. Directories above
    /// the target are made when they are missing.
    ///
    /// # Errors
    ///
    /// When another run is building for the same target, when etcd has the target's database open, or when
    /// the target is not a directory that can be renamed.
    pub fn create(target: &Path) -> Result<Self, SwapError> {
        Place::prepare_parent(target)?;
        recover(target)?;
        let place = Place::resolve(target)?;
        place.occupancy()?;
        place.refuse_live()?;
        for attempt in 0..ATTEMPTS {
            let dir = place.staging_dir(attempt);
            match durable::create_private_dir(&dir) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(source) => return Err(SwapError::create(dir, source)),
            }
            match Mark::create(&dir) {
                Ok(Some(mark)) => {
                    return Ok(Self {
                        place,
                        dir,
                        mark,
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
            target: place.target,
        })
    }

    /// Where to build.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The directory that will be replaced, by its real path.
    pub fn target(&self) -> &Path {
        &self.place.target
    }

    /// Syncs what was built and puts it in the target's place. The old directory is kept as
    /// `<target>.before-<now>`.
    ///
    /// # Errors
    ///
    /// Up to the swap an error leaves the target untouched and removes the new directory. Errors behind it
    /// say so ([`SwapError::is_in_place`]): the new directory serves, and [`recover`] tidies up.
    pub fn commit(self, now: Timestamp) -> Result<Committed, SwapError> {
        self.commit_by(now, exchange_names, &mut |_| {})
    }

    /// Removes what was built, and says when that fails.
    pub fn abandon(mut self) -> Result<(), SwapError> {
        self.owns_dir = false;
        self.mark
            .discard(&self.dir)
            .map_err(|source| SwapError::Discard {
                dir: self.dir.clone(),
                source,
            })
    }

    fn commit_by(
        mut self,
        now: Timestamp,
        exchange: Exchange,
        watch: Watch<'_>,
    ) -> Result<Committed, SwapError> {
        watch(Step::Sync);
        durable::sync_tree(&self.dir).map_err(|(path, source)| SwapError::Sync { path, source })?;
        let occupancy = self.place.occupancy()?;
        let _until_swapped = self.place.hold_database()?;
        let before = self.place.free_before_name(now);
        watch(Step::Mark);
        self.mark
            .complete(&before)
            .and_then(|()| durable::sync_dir(&self.dir))
            .map_err(|source| SwapError::Mark {
                dir: self.dir.clone(),
                source,
            })?;
        self.place.sync_parent()?;
        let kept = match occupancy {
            Occupancy::Missing => self.move_in(watch).map(|()| None)?,
            Occupancy::Directory => self.replace(&before, exchange, watch)?,
        };
        watch(Step::Unmark);
        self.place.unmark()?;
        watch(Step::Done);
        Ok(Committed {
            target: self.place.target.clone(),
            kept,
        })
    }

    fn replace(
        &mut self,
        before: &OsStr,
        exchange: Exchange,
        watch: Watch<'_>,
    ) -> Result<Option<PathBuf>, SwapError> {
        watch(Step::Exchange);
        match exchange(&self.dir, &self.place.target) {
            Ok(()) => self.owns_dir = false,
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return self.rename_twice(before, watch);
            }
            Err(errno) => return Err(self.place.rename_failed(&self.dir, errno.into())),
        }
        self.place
            .sync_parent()
            .map_err(SwapError::behind_the_swap)?;
        watch(Step::SetAside);
        self.place
            .set_aside(&self.dir, before)
            .map_err(SwapError::behind_the_swap)
    }

    fn rename_twice(
        &mut self,
        before: &OsStr,
        watch: Watch<'_>,
    ) -> Result<Option<PathBuf>, SwapError> {
        watch(Step::SetAside);
        let kept = self.place.set_aside(&self.place.target, before)?;
        let moved = self.move_in(watch);
        if let (Err(_), true, Some(kept)) = (&moved, self.owns_dir, &kept) {
            // The old one back; failing that, both stay for `recover`.
            self.owns_dir = fs::rename(kept, &self.place.target).is_ok();
        }
        moved.map(|()| kept)
    }

    fn move_in(&mut self, watch: Watch<'_>) -> Result<(), SwapError> {
        watch(Step::MoveIn);
        fs::rename(&self.dir, &self.place.target)
            .map_err(|source| self.place.rename_failed(&self.dir, source))?;
        self.owns_dir = false;
        self.place.sync_parent().map_err(SwapError::behind_the_swap)
    }
}

/// Puts a directory away as `<target>.before-<now>`, so that nothing is at its place. Returns where it is kept; `None` when
/// there was nothing to keep.
///
/// # Errors
///
/// When another run is building for the same target, or etcd has its database open.
pub fn set_aside(target: &Path, now: Timestamp) -> Result<Option<PathBuf>, SwapError> {
    recover(target)?;
    let place = match Place::resolve(target) {
        Err(SwapError::Look { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None); // not even the directory above exists
        }
        resolved => resolved?,
    };
    if place.occupancy()? == Occupancy::Missing {
        return Ok(None);
    }
    let _until_away = place.hold_database()?;
    place.set_aside(&place.target, &place.free_before_name(now))
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.owns_dir {
            let _left_for_recovery = self.mark.discard(&self.dir);
        }
    }
}
