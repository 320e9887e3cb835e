//! The verdict of each error of the layers below.

use std::io;

use mainstay_archive::chain::ChooseError;
use mainstay_bbolt::BboltError;
use mainstay_datadir::{BootstrapError, LockError, MembershipError, SwapError, VolumeFenceError};
use mainstay_mvcc::hash::HashError;
use mainstay_store::{ErrorClass, StoreArgsError, StoreError, StoreOpenError};
use serde_json::{Value, json};

use super::{Classify, ExitVerdict};
use crate::rebuild::RebuildError;
use crate::rebuild::compare::CompareError;
use crate::rebuild::finish::FinishError;

pub(crate) fn classify_io_error(error: &io::Error) -> ExitVerdict {
    // Streams carry errors of the store inside io::Error: unwrap them, so that an outage is not reported as damage.
    if let Some(store) = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<StoreError>())
    {
        return store.verdict();
    }
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ExitVerdict::Disk,
        io::ErrorKind::PermissionDenied => ExitVerdict::StoreUnavailable,
        _ => ExitVerdict::DamagedBackup,
    }
}

/// Tells failures of the disk from invalid content.
pub(crate) fn classify_database_error(error: &BboltError) -> ExitVerdict {
    match error {
        BboltError::Read { .. } | BboltError::Write { .. } | BboltError::Sync { .. } => {
            ExitVerdict::Disk
        }
        _ => ExitVerdict::DamagedBackup,
    }
}

impl Classify for RebuildError {
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::Open { source, .. } | Self::ReadBase { source, .. } => classify_io_error(source),
            Self::Delta { source, .. } => match std::error::Error::source(source)
                .and_then(|inner| inner.downcast_ref::<io::Error>())
            {
                Some(error) => classify_io_error(error),
                None => ExitVerdict::DamagedBackup,
            },
            Self::Compression { .. }
            | Self::BaseLength { .. }
            | Self::BaseUnhashed { .. }
            | Self::BaseHash { .. }
            | Self::BaseStructure { .. }
            | Self::BaseFacts { .. }
            | Self::BaseRow { .. }
            | Self::RevisionBeforeName { .. } => ExitVerdict::DamagedBackup,
            Self::Write { .. } | Self::Scratch { .. } => ExitVerdict::Disk,
            Self::Database { source } => classify_database_error(source),
            // The objects are intact, but they do not contain the requested state.
            Self::MissingTime { .. }
            | Self::Gap { .. }
            | Self::ChainTooShort { .. }
            | Self::Compacted { .. } => ExitVerdict::Incomplete,
            Self::Cancelled | Self::Thread { .. } => ExitVerdict::Failed,
        }
    }

    fn next_step(&self) -> Option<String> {
        match self.verdict() {
            ExitVerdict::DamagedBackup => Some(
                "run `mainstay-restorer list` to see the chains; restore from another full snapshot with \
                 `--from <Full-…>`, or stop before the damage with `--to-revision`"
                    .into(),
            ),
            ExitVerdict::Disk => Some(
                "free space on the volume and run the same command again; nothing was changed"
                    .into(),
            ),
            _ => None,
        }
    }
}

impl Classify for StoreError {
    fn verdict(&self) -> ExitVerdict {
        match self.class() {
            ErrorClass::Corrupt => ExitVerdict::DamagedBackup,
            _ => ExitVerdict::StoreUnavailable,
        }
    }
}

impl Classify for StoreOpenError {
    fn verdict(&self) -> ExitVerdict {
        ExitVerdict::StoreUnavailable
    }

    fn next_step(&self) -> Option<String> {
        Some("check --storage-provider and its credential files".into())
    }
}

impl Classify for StoreArgsError {
    fn verdict(&self) -> ExitVerdict {
        ExitVerdict::Usage
    }
}

impl Classify for ChooseError {
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::NoSnapshots => ExitVerdict::NoBackup,
            _ => ExitVerdict::Incomplete,
        }
    }
}

impl Classify for MembershipError {
    fn verdict(&self) -> ExitVerdict {
        ExitVerdict::Usage
    }
}

impl Classify for SwapError {
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::DatabaseInUse { .. } | Self::Busy { .. } => ExitVerdict::InUse,
            // A rename cannot replace such a path, so the command line is wrong.
            Self::InvalidTarget { .. } | Self::NotADirectory { .. } | Self::MountPoint { .. } => {
                ExitVerdict::Usage
            }
            // The new directory is already in place: `disk` would promise that nothing was changed.
            Self::Ambiguous { .. } | Self::AfterSwap { .. } => ExitVerdict::Failed,
            Self::Lock(error) => error.verdict(),
            _ => ExitVerdict::Disk,
        }
    }
}

impl Classify for VolumeFenceError {
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::Superseded { .. } => ExitVerdict::InUse,
            _ => ExitVerdict::Disk,
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
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::Held { .. } => ExitVerdict::InUse,
            _ => ExitVerdict::Disk,
        }
    }
}

impl Classify for BootstrapError {
    fn verdict(&self) -> ExitVerdict {
        ExitVerdict::Disk
    }
}

impl Classify for CompareError {
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::Open { source } => classify_database_error(source),
            // The backup ends before the revision of the hash.
            Self::Hash {
                source: HashError::FutureRevision { .. },
            } => ExitVerdict::Incomplete,
            Self::Hash { .. } | Self::Differs { .. } => ExitVerdict::DamagedBackup,
        }
    }
}

impl Classify for FinishError {
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::RevisionOverflow { .. } => ExitVerdict::Usage,
            Self::Facts { .. } => ExitVerdict::DamagedBackup,
            Self::Database { source } => classify_database_error(source),
        }
    }
}
