//! Builds the index from the rows of a store.

use std::ops::ControlFlow;

use mainstay_ids::Revision;

use super::MvccOptions;
use super::core::Core;
use super::state::State;
use crate::error::EngineError;
use crate::row::Position;
use crate::row_store::{RowStore, StorageError};

impl Core {
    pub(super) fn open(rows: Box<dyn RowStore>, options: MvccOptions) -> Result<Self, EngineError> {
        let state = read_state(&*rows).map_err(EngineError::Storage)?;
        let compacted = state.compacted;
        let core = Self::new(rows, options, state);
        // A crash may have interrupted the last compaction.
        if let (Some(revision), true) = (compacted, options.capabilities.is_writable) {
            core.discard(revision)?;
        }
        Ok(core)
    }
}

fn read_state(rows: &dyn RowStore) -> Result<State, StorageError> {
    let stored = rows.stored_state()?;
    let mut state = State::empty();
    for (id, ttl) in &stored.leases {
        state
            .leases
            .grant(*id, *ttl)
            .map_err(|source| StorageError::new("restore a lease", source))?;
    }
    rows.reader()?
        .scan(Position::first_of(Revision(0)), &mut |row| {
            state.add_row(&row);
            ControlFlow::Continue(())
        })?;
    let known = [stored.revision, stored.compacted];
    state.current = known
        .into_iter()
        .flatten()
        .fold(state.current, Revision::max);
    state.visible = state.current;
    state.compacted = stored.compacted;
    Ok(state)
}
