//! Discards rows that no readable revision needs.

use bytes::Bytes;
use mainstay_ids::Revision;

use super::core::Core;
use crate::error::EngineError;
use crate::row::Position;
use crate::row_store::{Batch, StorageError};

/// Keys compacted at once: readers and writers wait no longer than this takes.
const CHUNK: usize = 1000;

impl Core {
    /// Discards what a compaction at `revision` makes unreachable. The compacted revision is recorded before, so an
    /// interrupted run is completed at the next start.
    pub(super) fn discard(&self, revision: Revision) -> Result<(), EngineError> {
        let mut after: Option<Bytes> = None;
        loop {
            let next = self
                .with_turn(|| self.discard_chunk(revision, after.as_ref()))
                .map_err(EngineError::Storage)?;
            match next {
                Some(last) => after = Some(last),
                None => return Ok(()),
            }
        }
    }

    fn discard_chunk(
        &self,
        revision: Revision,
        after: Option<&Bytes>,
    ) -> Result<Option<Bytes>, StorageError> {
        let (dropped, last) = {
            let mut state = self.state_mut();
            state.index.compact_some(revision, after, CHUNK)
        };
        if !dropped.is_empty() {
            let bytes = self.size_of(&dropped)?;
            let batch = Batch {
                deleted: dropped,
                ..Batch::default()
            };
            self.rows.commit(&batch)?;
            let mut state = self.state_mut();
            state.bytes = state.bytes.saturating_sub(bytes);
        }
        Ok(last)
    }

    fn size_of(&self, positions: &[Position]) -> Result<u64, StorageError> {
        let reader = self.rows.reader()?;
        let mut bytes = 0;
        for at in positions {
            bytes += reader.row(*at)?.map_or(0, |row| row.size());
        }
        Ok(bytes)
    }
}
