//! Collects what is found on the way, and tells damage from being unable to look.

use std::fmt;
use std::path::Path;

use super::error::VerifyError;
use super::report::{DirFault, FaultKind, DirFinding, DirWarning, WarningKind};

/// Why a check stopped.
#[derive(Debug)]
pub(super) enum CheckFailure {
    /// Something is damaged. Other files can still be looked at.
    Damage(DirFault),
    /// Nothing can be said.
    Unverifiable(VerifyError),
}

impl CheckFailure {
    pub(super) fn damage(
        what: FaultKind,
        file: &Path,
        place: impl fmt::Display,
        reason: String,
    ) -> Self {
        Self::Damage(DirFinding::new(what, file, place, reason))
    }
}

impl From<VerifyError> for CheckFailure {
    fn from(error: VerifyError) -> Self {
        Self::Unverifiable(error)
    }
}

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) faults: Vec<DirFault>,
    pub(super) warnings: Vec<DirWarning>,
}

impl Findings {
    pub(super) fn add_fault(
        &mut self,
        what: FaultKind,
        file: &Path,
        place: impl fmt::Display,
        reason: String,
    ) {
        self.faults.push(DirFinding::new(what, file, place, reason));
    }

    pub(super) fn add_warning(
        &mut self,
        what: WarningKind,
        file: &Path,
        place: impl fmt::Display,
        reason: String,
    ) {
        self.warnings.push(DirFinding::new(what, file, place, reason));
    }

    /// Writes damage down and goes on without the result of the check.
    pub(super) fn record_damage<T>(&mut self, result: Result<T, CheckFailure>) -> Result<Option<T>, VerifyError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(CheckFailure::Damage(fault)) => {
                self.faults.push(fault);
                Ok(None)
            }
            Err(CheckFailure::Unverifiable(error)) => Err(error),
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.faults.extend(other.faults);
        self.warnings.extend(other.warnings);
    }
}
