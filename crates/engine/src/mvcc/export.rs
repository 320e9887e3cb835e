//! Exports the history while writes go on.

use std::ops::ControlFlow;
use std::path::Path;

use mainstay_ids::{LeaseId, Revision};

use super::core::Core;
use crate::error::EngineError;
use crate::export::write_database;
use crate::row::Position;
use crate::row_store::{StorageError, StoredState};

impl Core {
    /// Writes everything up to the visible revision. Repeated when a compaction ran meanwhile, because rows of its
    /// range may be missing in the middle.
    pub(super) fn export(&self, file: &Path) -> Result<Revision, EngineError> {
        loop {
            let state = self.exported_state();
            self.write_rows_to(file, &state)?;
            if self.state().compacted == state.compacted {
                return Ok(state.revision.unwrap_or(Revision::EMPTY));
            }
        }
    }

    fn exported_state(&self) -> StoredState {
        let state = self.state();
        let ttl = |id: &LeaseId| {
            state
                .leases
                .status(*id)
                .map_or(0, |lease| lease.granted_ttl)
        };
        StoredState {
            revision: Some(state.visible),
            compacted: state.compacted,
            leases: state.leases.ids().iter().map(|id| (*id, ttl(id))).collect(),
        }
    }

    fn write_rows_to(&self, file: &Path, state: &StoredState) -> Result<(), EngineError> {
        let last = state.revision.unwrap_or(Revision::EMPTY);
        let reader = self.rows.reader().map_err(EngineError::Storage)?;
        write_database(file, state, |add| {
            let mut failed = None;
            reader.scan(Position::first_of(Revision(0)), &mut |row| {
                if row.at.main > last {
                    return ControlFlow::Break(());
                }
                match add(row) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                }
            })?;
            match failed {
                Some(error) => Err(StorageError::new("write the database file", error)),
                None => Ok(()),
            }
        })
        .map_err(EngineError::Storage)
    }
}
