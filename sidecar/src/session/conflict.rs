//! Reasons to refuse writing to a store.

use mainstay_ids::Revision;

use crate::metrics::GapCause;

/// The store belongs to a different etcd history. A chain that mixes two histories restores to neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum StoreConflict {
    #[error(
        "the store ends at revision {store}, but etcd is only at {etcd}: this backup belongs to a different etcd history. \
         Restore etcd from this backup, or set another --store-prefix"
    )]
    StoreAhead { store: Revision, etcd: Revision },
    #[error(
        "revision {revision} in the store differs from etcd's: this backup belongs to a different etcd history. \
         Restore etcd from this backup, or set another --store-prefix"
    )]
    ForeignHistory { revision: Revision },
}

impl StoreConflict {
    /// Failure class for metrics and `/status`.
    pub(super) fn class(self) -> &'static str {
        self.gap_cause().as_str()
    }

    pub(super) fn gap_cause(self) -> GapCause {
        match self {
            Self::StoreAhead { .. } => GapCause::StoreAhead,
            Self::ForeignHistory { .. } => GapCause::ForeignHistory,
        }
    }
}
