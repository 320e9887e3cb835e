//! The verdict of each error of the layers below.

use std::io;

use mainstay_archive::chain::ChooseError;
use mainstay_backup::ProofError;
use mainstay_bbolt::BboltError;
use mainstay_datadir::{BootstrapError, LockError, MembershipError, SwapError, VolumeFenceError};
use mainstay_mvcc::hash::HashError;
use mainstay_store::{ErrorClass, StoreArgsError, StoreError, StoreOpenError};
use mainstay_verdict::Verdict;
use serde_json::{Value, json};

use super::Classify;
use crate::rebuild::RebuildError;
use crate::rebuild::compare::CompareError;
use crate::rebuild::finish::FinishError;

pub(crate) fn classify_io_error(error: &io::Error) -> Verdict {
    // Streams carry errors of the store inside io::Error: unwrap them, so that an outage is not reported as damage.
    if let Some(store) = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<StoreError>())
    {
        return store.verdict();
    }
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Verdict::Disk,
        io::ErrorKind::PermissionDenied => Verdict::StoreUnavailable,
        _ => Verdict::DamagedBackup,
    }
}

/// Tells failures of the disk from invalid content.
pub(crate) fn classify_database_error(error: &BboltError) -> Verdict {
    match error {
        BboltError::Read { .. } | BboltError::Write { .. } | BboltError::Sync { .. } => {
            Verdict::Disk
        }
        _ => Verdict::DamagedBackup,
    }
}

impl Classify for ProofError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Open { source, .. } | Self::ReadBase { source, .. } => classify_io_error(source),
            Self::Delta { source, .. } => match std::error::Error::source(source)
                .and_then(|inner| inner.downcast_ref::<io::Error>())
            {
                Some(error) => classify_io_error(error),
                None => Verdict::DamagedBackup,
            },
            Self::Compression { .. }
            | Self::BaseLength { .. }
            | Self::BaseUnhashed { .. }
            | Self::BaseHash { .. }
            | Self::BaseStructure { .. }
            | Self::BaseFacts { .. }
            | Self::GapInside { .. }
            | Self::NameNotCovered { .. }
            | Self::RevisionBeforeName { .. } => Verdict::DamagedBackup,
            // The objects are intact, but they do not contain the requested state.
            Self::MissingTime { .. }
            | Self::Gap { .. }
            | Self::ChainTooShort { .. }
            | Self::Compacted { .. } => Verdict::Incomplete,
        }
    }

    fn next_step(&self) -> Option<String> {
        suggest_next_step(self.verdict())
    }
}

impl Classify for RebuildError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Proof(error) => error.verdict(),
            Self::BaseRow { .. } => Verdict::DamagedBackup,
            Self::Write { .. } | Self::Scratch { .. } => Verdict::Disk,
            Self::Database { source } => classify_database_error(source),
            Self::Cancelled | Self::Thread { .. } => Verdict::Failed,
        }
    }

    fn next_step(&self) -> Option<String> {
        suggest_next_step(self.verdict())
    }
}

fn suggest_next_step(verdict: Verdict) -> Option<String> {
    match verdict {
            Verdict::DamagedBackup => Some(
                "run `mainstay-restorer list` to see the chains; restore from another full snapshot with \
                 `--from <Full-…>`, or stop before the damage with `--to-revision`"
                    .into(),
            ),
            Verdict::Disk => Some(
                "free space on the volume and run the same command again; nothing was changed"
                    .into(),
            ),
            _ => None,
        }
}

impl Classify for StoreError {
    fn verdict(&self) -> Verdict {
        match self.class() {
            ErrorClass::Corrupt => Verdict::DamagedBackup,
            _ => Verdict::StoreUnavailable,
        }
    }
}

impl Classify for StoreOpenError {
    fn verdict(&self) -> Verdict {
        Verdict::StoreUnavailable
    }

    fn next_step(&self) -> Option<String> {
        Some("check --storage-provider and its credential files".into())
    }
}

impl Classify for StoreArgsError {
    fn verdict(&self) -> Verdict {
        Verdict::Usage
    }
}

impl Classify for ChooseError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::NoSnapshots => Verdict::NoBackup,
            _ => Verdict::Incomplete,
        }
    }
}

impl Classify for MembershipError {
    fn verdict(&self) -> Verdict {
        Verdict::Usage
    }
}

impl Classify for SwapError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::DatabaseInUse { .. } | Self::Busy { .. } => Verdict::InUse,
            // A rename cannot replace such a path, so the command line is wrong.
            Self::InvalidTarget { .. } | Self::NotADirectory { .. } | Self::MountPoint { .. } => {
                Verdict::Usage
            }
            // The new directory is already in place: `disk` would promise that nothing was changed.
            Self::Ambiguous { .. } | Self::AfterSwap { .. } => Verdict::Failed,
            Self::Lock(error) => error.verdict(),
            _ => Verdict::Disk,
        }
    }
}

impl Classify for VolumeFenceError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Superseded { .. } => Verdict::InUse,
            _ => Verdict::Disk,
        }
    }

    /// Epoch recorded on the volume: the controller must start the next writer with a higher one.
    fn details(&self) -> Value {
        match self {
            Self::Superseded {
                epoch: Some(epoch), ..
            } => json!({ "overtakenBy": epoch.0 }),
            _ => Value::Null,
        }
    }
}

impl Classify for LockError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Held { .. } => Verdict::InUse,
            _ => Verdict::Disk,
        }
    }
}

impl Classify for BootstrapError {
    fn verdict(&self) -> Verdict {
        Verdict::Disk
    }
}

impl Classify for CompareError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Open { source } => classify_database_error(source),
            // The backup ends before the revision of the hash.
            Self::Hash {
                source: HashError::FutureRevision { .. },
            } => Verdict::Incomplete,
            Self::Hash { .. } | Self::Differs { .. } => Verdict::DamagedBackup,
        }
    }
}

impl Classify for FinishError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::RevisionOverflow { .. } => Verdict::Usage,
            Self::Facts { .. } => Verdict::DamagedBackup,
            Self::Database { source } => classify_database_error(source),
        }
    }
}
