//! Collects findings, and distinguishes damage from errors that prevent a check.

use std::fmt;
use std::path::Path;

use super::error::VerifyError;
use super::report::{DirFault, DirFinding, DirWarning, FaultKind, WarningKind};

/// Why a check ended early.
#[derive(Debug)]
pub(super) enum CheckFailure {
    /// Damage was found. Other files can still be checked.
    Damage(DirFault),
    /// The check is not possible.
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

/// Faults and warnings found so far.
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
        self.warnings
            .push(DirFinding::new(what, file, place, reason));
    }

    /// Records damage and returns `None` for the result of the check.
    pub(super) fn record_damage<T>(
        &mut self,
        result: Result<T, CheckFailure>,
    ) -> Result<Option<T>, VerifyError> {
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
