//! Tidies up after a run that did not get to its end.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::mark::{MarkerLock, StagingMarker};
use super::place::{TargetState, SwapTarget};
use super::{SwapStep, SwapError, StepHook};

/// What was found beside a target and done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapRecovery {
    /// Whether a complete new directory was moved to the target's place, which was empty.
    pub moved_into_place: bool,
    /// Where an old directory was put away whose swap had happened already.
    pub previous_dir: Option<PathBuf>,
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
pub fn recover_swap(target: &Path) -> Result<SwapRecovery, SwapError> {
    recover_swap_with(target, &mut |_| {})
}

pub(super) fn recover_swap_with(target: &Path, watch: StepHook<'_>) -> Result<SwapRecovery, SwapError> {
    let place = match SwapTarget::resolve(target) {
        Err(SwapError::Inspect { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(SwapRecovery::default()); // not even the directory above exists
        }
        resolved => resolved?,
    };
    let mut run = RecoveryRun::start(&place)?;
    for dir in place.list_staging_dirs()? {
        run.process_staging_dir(dir, watch)?;
    }
    run.finish(watch)
}

/// One tidying up.
struct RecoveryRun<'a> {
    target: &'a SwapTarget,
    target_exists: bool,
    /// The mark in the target: it is a new directory whose swap was not finished.
    target_marker: Option<StagingMarker>,
    /// Complete new directories that could take the place of a missing target.
    candidates: Vec<(PathBuf, StagingMarker)>,
    recovery: SwapRecovery,
}

impl<'a> RecoveryRun<'a> {
    fn start(place: &'a SwapTarget) -> Result<Self, SwapError> {
        let mut run = Self {
            target: place,
            target_exists: fs::symlink_metadata(&place.path).is_ok(),
            target_marker: None,
            candidates: Vec::new(),
            recovery: SwapRecovery::default(),
        };
        if run.target_exists && place.path.is_dir() {
            run.target_marker = lock_marker(&place.path)?;
        }
        Ok(run)
    }

    /// Judges one directory with a staging name.
    fn process_staging_dir(&mut self, dir: PathBuf, watch: StepHook<'_>) -> Result<(), SwapError> {
        match lock_marker(&dir)? {
            Some(mark) if !self.target_exists && read_previous_name(&mark, &dir)?.is_some() => {
                self.candidates.push((dir, mark));
                Ok(())
            }
            Some(mark) => {
                watch(SwapStep::Discard);
                mark.remove_dir(&dir).map_err(|source| SwapError::RemoveLeftovers {
                    dir: dir.clone(),
                    source,
                })?;
                self.recovery.removed.push(dir);
                Ok(())
            }
            None => self.process_unmarked_dir(dir, watch),
        }
    }

    /// A directory without a mark was emptied halfway, or it is the old one after an exchange.
    fn process_unmarked_dir(&mut self, dir: PathBuf, watch: StepHook<'_>) -> Result<(), SwapError> {
        if fs::remove_dir(&dir).is_ok() {
            self.recovery.removed.push(dir);
            return Ok(());
        }
        let promised = match &self.target_marker {
            Some(mark) => read_previous_name(mark, &self.target.path)?,
            None => None,
        };
        match promised.filter(|name| self.target.is_previous_name(name)) {
            Some(name) if self.recovery.previous_dir.is_none() => {
                watch(SwapStep::RenameToPrevious);
                self.recovery.previous_dir = self.target.rename_to_previous(&dir, &name)?;
            }
            _ => self.recovery.foreign.push(dir),
        }
        Ok(())
    }

    fn finish(mut self, watch: StepHook<'_>) -> Result<SwapRecovery, SwapError> {
        if self.candidates.len() > 1 {
            return Err(SwapError::Ambiguous {
                target: self.target.path.clone(),
                candidates: self.candidates.into_iter().map(|(dir, _)| dir).collect(),
            });
        }
        if let Some((dir, mark)) = self.candidates.pop() {
            watch(SwapStep::MoveIntoPlace);
            debug_assert_eq!(self.target.read_state().ok(), Some(TargetState::Missing));
            fs::rename(&dir, &self.target.path)
                .map_err(|source| self.target.rename_error(&dir, source))?;
            self.target.sync_parent()?;
            self.recovery.moved_into_place = true;
            self.target_marker = Some(mark);
        }
        if self.target_marker.is_some() {
            watch(SwapStep::RemoveMarker);
            self.target.remove_marker()?;
        }
        watch(SwapStep::Done);
        Ok(self.recovery)
    }
}

/// The mark of `dir` when there is one; an error while its maker lives.
fn lock_marker(dir: &Path) -> Result<Option<StagingMarker>, SwapError> {
    match StagingMarker::try_lock(dir) {
        Ok(MarkerLock::Acquired(mark)) => Ok(Some(mark)),
        Ok(MarkerLock::Absent) => Ok(None),
        Ok(MarkerLock::Held) => Err(SwapError::Busy {
            dir: dir.to_owned(),
        }),
        Err(source) => Err(SwapError::Marker {
            dir: dir.to_owned(),
            source,
        }),
    }
}

fn read_previous_name(mark: &StagingMarker, dir: &Path) -> Result<Option<OsString>, SwapError> {
    mark.read_previous_name().map_err(|source| SwapError::Marker {
        dir: dir.to_owned(),
        source,
    })
}
