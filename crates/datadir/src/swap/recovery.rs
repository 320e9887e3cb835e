//! Tidies up after a run that did not get to its end.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::mark::{Claim, Mark};
use super::place::{Occupancy, Place};
use super::{Step, SwapError, Watch};

/// What was found beside a target and done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether a complete new directory was moved to the target's place, which was empty.
    pub moved_in: bool,
    /// Where an old directory was put away whose swap had happened already.
    pub kept: Option<PathBuf>,
    /// Unfinished directories that were removed.
    pub removed: Vec<PathBuf>,
    /// Directories with the name of a staging directory that are not ours; they were left alone.
    pub foreign: Vec<PathBuf>,
}

/// Finishes or undoes what a crashed run left beside `target`. Does nothing when there is nothing to do.
///
/// # Errors
///
/// When another run is still at work there.
pub fn recover(target: &Path) -> Result<Recovery, SwapError> {
    recover_by(target, &mut |_| {})
}

pub(super) fn recover_by(target: &Path, watch: Watch<'_>) -> Result<Recovery, SwapError> {
    let place = match Place::resolve(target) {
        Err(SwapError::Look { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(Recovery::default()); // not even the directory above exists
        }
        resolved => resolved?,
    };
    let mut run = Run::begin(&place)?;
    for dir in place.staging_dirs()? {
        run.consider(dir, watch)?;
    }
    run.finish(watch)
}

/// One tidying up.
struct Run<'a> {
    place: &'a Place,
    target_exists: bool,
    /// The mark in the target: it is a new directory whose swap was not finished.
    target_mark: Option<Mark>,
    /// Complete new directories that could take the place of a missing target.
    candidates: Vec<(PathBuf, Mark)>,
    done: Recovery,
}

impl<'a> Run<'a> {
    fn begin(place: &'a Place) -> Result<Self, SwapError> {
        let mut run = Self {
            place,
            target_exists: fs::symlink_metadata(&place.target).is_ok(),
            target_mark: None,
            candidates: Vec::new(),
            done: Recovery::default(),
        };
        if run.target_exists && place.target.is_dir() {
            run.target_mark = claim(&place.target)?;
        }
        Ok(run)
    }

    /// Judges one directory with a staging name.
    fn consider(&mut self, dir: PathBuf, watch: Watch<'_>) -> Result<(), SwapError> {
        match claim(&dir)? {
            Some(mark) if !self.target_exists && before_name(&mark, &dir)?.is_some() => {
                self.candidates.push((dir, mark));
                Ok(())
            }
            Some(mark) => {
                watch(Step::Discard);
                mark.discard(&dir).map_err(|source| SwapError::Discard {
                    dir: dir.clone(),
                    source,
                })?;
                self.done.removed.push(dir);
                Ok(())
            }
            None => self.consider_unmarked(dir, watch),
        }
    }

    /// A directory without a mark was emptied halfway, or it is the old one after an exchange.
    fn consider_unmarked(&mut self, dir: PathBuf, watch: Watch<'_>) -> Result<(), SwapError> {
        if fs::remove_dir(&dir).is_ok() {
            self.done.removed.push(dir);
            return Ok(());
        }
        let promised = match &self.target_mark {
            Some(mark) => before_name(mark, &self.place.target)?,
            None => None,
        };
        match promised.filter(|name| self.place.is_before_name(name)) {
            Some(name) if self.done.kept.is_none() => {
                watch(Step::SetAside);
                self.done.kept = self.place.set_aside(&dir, &name)?;
            }
            _ => self.done.foreign.push(dir),
        }
        Ok(())
    }

    fn finish(mut self, watch: Watch<'_>) -> Result<Recovery, SwapError> {
        if self.candidates.len() > 1 {
            return Err(SwapError::Ambiguous {
                target: self.place.target.clone(),
                candidates: self.candidates.into_iter().map(|(dir, _)| dir).collect(),
            });
        }
        if let Some((dir, mark)) = self.candidates.pop() {
            watch(Step::MoveIn);
            debug_assert_eq!(self.place.occupancy().ok(), Some(Occupancy::Missing));
            fs::rename(&dir, &self.place.target)
                .map_err(|source| self.place.rename_failed(&dir, source))?;
            self.place.sync_parent()?;
            self.done.moved_in = true;
            self.target_mark = Some(mark);
        }
        if self.target_mark.is_some() {
            watch(Step::Unmark);
            self.place.unmark()?;
        }
        watch(Step::Done);
        Ok(self.done)
    }
}

/// The mark of `dir` when there is one; an error while its maker lives.
fn claim(dir: &Path) -> Result<Option<Mark>, SwapError> {
    match Mark::claim(dir) {
        Ok(Claim::Ours(mark)) => Ok(Some(mark)),
        Ok(Claim::Absent) => Ok(None),
        Ok(Claim::Held) => Err(SwapError::Busy {
            dir: dir.to_owned(),
        }),
        Err(source) => Err(SwapError::Mark {
            dir: dir.to_owned(),
            source,
        }),
    }
}

fn before_name(mark: &Mark, dir: &Path) -> Result<Option<OsString>, SwapError> {
    mark.before().map_err(|source| SwapError::Mark {
        dir: dir.to_owned(),
        source,
    })
}
