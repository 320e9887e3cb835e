//! How each error of the layers below ends.

use std::io;

use mainstay_archive::chain::ChooseError;
use mainstay_bbolt::Error as BboltError;
use mainstay_datadir::{BootstrapError, FenceError, LockError, MembershipError, SwapError};
use mainstay_mvcc::hash::HashError;
use mainstay_store::{ArgsError, Class, OpenError, StoreError};
use serde_json::{Value, json};

use super::{Classify, Verdict};
use crate::rebuild::RebuildError;
use crate::rebuild::compare::CompareError;
use crate::rebuild::finish::FinishError;

pub(crate) fn io_verdict(error: &io::Error) -> Verdict {
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

/// The disk's fault, or that of the bytes on it.
pub(crate) fn database_verdict(error: &BboltError) -> Verdict {
    match error {
        BboltError::Read { .. } | BboltError::Write { .. } | BboltError::Sync { .. } => {
            Verdict::Disk
        }
        _ => Verdict::DamagedBackup,
    }
}

impl Classify for RebuildError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Open { source, .. } | Self::ReadBase { source, .. } => io_verdict(source),
            Self::Delta { source, .. } => match std::error::Error::source(source)
                .and_then(|inner| inner.downcast_ref::<io::Error>())
            {
                Some(error) => io_verdict(error),
                None => Verdict::DamagedBackup,
            },
            Self::Compression { .. }
            | Self::BaseLength { .. }
            | Self::BaseUnhashed { .. }
            | Self::BaseHash { .. }
            | Self::BaseStructure { .. }
            | Self::BaseFacts { .. }
            | Self::BaseRow { .. }
            | Self::BeforeName { .. } => Verdict::DamagedBackup,
            Self::Write { .. } | Self::Scratch { .. } => Verdict::Disk,
            Self::Database { source } => database_verdict(source),
            Self::Time { .. } | Self::Gap { .. } | Self::Short { .. } | Self::Compacted { .. } => {
                Verdict::Incomplete
            }
            Self::Cancelled | Self::Thread { .. } => Verdict::Failed,
        }
    }

    fn next_step(&self) -> Option<String> {
        match self.verdict() {
            Verdict::DamagedBackup => Some(
                "`mainstay-restorer list` shows the chains; `--from <Full-…>` starts from another \
                 full snapshot, `--to-revision` stops before the damage"
                    .into(),
            ),
            Verdict::Disk => Some(
                "free space on the volume and run the same command again: nothing was changed"
                    .into(),
            ),
            _ => None,
        }
    }
}

impl Classify for StoreError {
    fn verdict(&self) -> Verdict {
        match self.class() {
            Class::Corrupt => Verdict::DamagedBackup,
            _ => Verdict::StoreUnavailable,
        }
    }
}

impl Classify for OpenError {
    fn verdict(&self) -> Verdict {
        Verdict::StoreUnavailable
    }

    fn next_step(&self) -> Option<String> {
        Some("check --storage-provider and the credential files it needs".into())
    }
}

impl Classify for ArgsError {
    fn verdict(&self) -> Verdict {
        Verdict::Usage
    }
}

impl Classify for ChooseError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Empty => Verdict::NoBackup,
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
            Self::Live { .. } | Self::Busy { .. } => Verdict::InUse,
            Self::Unnamed { .. } | Self::NotADirectory { .. } | Self::MountPoint { .. } => {
                Verdict::Usage
            }
            // The new directory is in place: neither unchanged nor a matter of space.
            Self::Ambiguous { .. } | Self::BehindTheSwap { .. } => Verdict::Failed,
            Self::Lock(error) => error.verdict(),
            _ => Verdict::Disk,
        }
    }
}

impl Classify for FenceError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Overtaken { .. } => Verdict::InUse,
            _ => Verdict::Disk,
        }
    }

    /// The epoch that whoever holds the lock has to go above.
    fn details(&self) -> Value {
        match self {
            Self::Overtaken {
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
            Self::Open { source } => database_verdict(source),
            Self::Hash {
                source: HashError::Future { .. },
            } => Verdict::Incomplete,
            Self::Hash { .. } | Self::Differs { .. } => Verdict::DamagedBackup,
        }
    }
}

impl Classify for FinishError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Bump { .. } => Verdict::Usage,
            Self::Facts { .. } => Verdict::DamagedBackup,
            Self::Database { source } => database_verdict(source),
        }
    }
}
