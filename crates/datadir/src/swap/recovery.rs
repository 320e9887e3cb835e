//! Recovers from a swap that crashed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::marker::{MarkerLock, StagingMarker};
use super::swap_target::{SwapTarget, TargetState};
use super::{StepHook, SwapError, SwapStep};

/// Result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapRecovery {
    /// Whether a complete new directory was moved to the missing target.
    pub moved_into_place: bool,
    /// New path of the previous data directory, if its swap had already happened.
    pub previous_dir: Option<PathBuf>,
    /// Incomplete directories that were removed.
    pub removed: Vec<PathBuf>,
    /// Directories with a staging name but without our marker; not changed.
    pub foreign: Vec<PathBuf>,
}

/// Completes or undoes the swap of a crashed run. Does nothing if there is none.
///
/// # Errors
///
/// If another process is still replacing the same target.
pub fn recover_swap(target: &Path) -> Result<SwapRecovery, SwapError> {
    recover_swap_with(target, &mut |_| {})
}

pub(super) fn recover_swap_with(
    target: &Path,
    watch: StepHook<'_>,
) -> Result<SwapRecovery, SwapError> {
    let place = match SwapTarget::resolve(target) {
        Err(SwapError::Inspect { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(SwapRecovery::default()); // the parent directory does not exist either
        }
        resolved => resolved?,
    };
    let mut run = RecoveryRun::start(&place)?;
    for dir in place.list_staging_dirs()? {
        run.process_staging_dir(dir, watch)?;
    }
    run.finish(watch)
}

/// One recovery run.
struct RecoveryRun<'a> {
    target: &'a SwapTarget,
    target_exists: bool,
    /// The marker in the target: a new directory whose swap is not complete.
    target_marker: Option<StagingMarker>,
    /// Complete new directories that could replace a missing target.
    candidates: Vec<(PathBuf, StagingMarker)>,
    recovery: SwapRecovery,
}

impl<'a> RecoveryRun<'a> {
    fn start(target: &'a SwapTarget) -> Result<Self, SwapError> {
        let mut run = Self {
            target,
            target_exists: fs::symlink_metadata(&target.path).is_ok(),
            target_marker: None,
            candidates: Vec::new(),
            recovery: SwapRecovery::default(),
        };
        if run.target_exists && target.path.is_dir() {
            run.target_marker = lock_marker(&target.path)?;
        }
        Ok(run)
    }

    /// Processes one directory with a staging name.
    fn process_staging_dir(&mut self, dir: PathBuf, watch: StepHook<'_>) -> Result<(), SwapError> {
        match lock_marker(&dir)? {
            Some(mark) if !self.target_exists && read_previous_name(&mark, &dir)?.is_some() => {
                self.candidates.push((dir, mark));
                Ok(())
            }
            // With the target present, a staging directory is superseded even if it is complete.
            Some(mark) => {
                watch(SwapStep::Discard);
                mark.remove_dir(&dir)
                    .map_err(|source| SwapError::RemoveLeftovers {
                        dir: dir.clone(),
                        source,
                    })?;
                self.recovery.removed.push(dir);
                Ok(())
            }
            None => self.process_unmarked_dir(dir, watch),
        }
    }

    /// A directory without marker was partly removed, or is the old one after an exchange.
    fn process_unmarked_dir(&mut self, dir: PathBuf, watch: StepHook<'_>) -> Result<(), SwapError> {
        // An empty directory is left by a crash between creating it and its marker, or at the end of a removal.
        if fs::remove_dir(&dir).is_ok() {
            self.recovery.removed.push(dir);
            return Ok(());
        }
        let recorded_name = match &self.target_marker {
            Some(mark) => read_previous_name(mark, &self.target.path)?,
            None => None,
        };
        // The name comes from a file on the volume: accept only our own form, without path separators.
        match recorded_name.filter(|name| self.target.is_previous_name(name)) {
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

/// Locks the marker of `dir`; `None` if there is none. Fails while its creator is alive.
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
    mark.read_previous_name()
        .map_err(|source| SwapError::Marker {
            dir: dir.to_owned(),
            source,
        })
}
