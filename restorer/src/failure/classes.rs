//! How each error of the layers below ends.

use std::io;

use mainstay_archive::chain::ChooseError;
use mainstay_bbolt::BboltError as BboltError;
use mainstay_datadir::{BootstrapError, VolumeFenceError, LockError, MembershipError, SwapError};
use mainstay_mvcc::hash::HashError;
use mainstay_store::{StoreArgsError, ErrorClass, StoreOpenError, StoreError};
use serde_json::{Value, json};

use super::{Classify, ExitVerdict};
use crate::rebuild::RebuildError;
use crate::rebuild::compare::CompareError;
use crate::rebuild::finish::FinishError;

pub(crate) fn classify_io_error(error: &io::Error) -> ExitVerdict {
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

/// The disk's fault, or that of the bytes on it.
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
            Self::MissingTime { .. } | Self::Gap { .. } | Self::ChainTooShort { .. } | Self::Compacted { .. } => {
                ExitVerdict::Incomplete
            }
            Self::Cancelled | Self::Thread { .. } => ExitVerdict::Failed,
        }
    }

    fn next_step(&self) -> Option<String> {
        match self.verdict() {
            ExitVerdict::DamagedBackup => Some(
                "`mainstay-restorer list` shows the chains; `--from <Full-…>` starts from another \
                 full snapshot, `--to-revision` stops before the damage"
                    .into(),
            ),
            ExitVerdict::Disk => Some(
                "free space on the volume and run the same command again: nothing was changed"
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
        Some("check --storage-provider and the credential files it needs".into())
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
            Self::InvalidTarget { .. } | Self::NotADirectory { .. } | Self::MountPoint { .. } => {
                ExitVerdict::Usage
            }
            // The new directory is in place: neither unchanged nor a matter of space.
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

    /// The epoch that whoever holds the lock has to go above.
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
