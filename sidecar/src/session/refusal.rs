//! Why a store is not written into.

use mainstay_ids::Revision;

use crate::metrics::GapCause;

/// Two histories in one chain restore to neither, so nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum StoreConflict {
    /// It reaches further than etcd.
    #[error(
        "the store reaches revision {store}, etcd only {etcd}: this etcd does not continue this backup. \
         Restore it from the backup, or give it another --store-prefix"
    )]
    StoreAhead {
        /// How far the store reaches.
        store: Revision,
        /// How far etcd reaches.
        etcd: Revision,
    },
    /// It holds other events than etcd.
    #[error(
        "revision {revision} in the store is another one than etcd's: this etcd does not continue this backup. \
         Restore it from the backup, or give it another --store-prefix"
    )]
    ForeignHistory {
        /// A revision that differs.
        revision: Revision,
    },
}

impl StoreConflict {
    /// One word for metrics and `/status`.
    pub(super) fn class(self) -> &'static str {
        self.gap_cause().as_str()
    }

    /// What it is counted as.
    pub(super) fn gap_cause(self) -> GapCause {
        match self {
            Self::StoreAhead { .. } => GapCause::StoreAhead,
            Self::ForeignHistory { .. } => GapCause::ForeignHistory,
        }
    }
}
