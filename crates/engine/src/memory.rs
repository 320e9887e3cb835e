//! Engine `memory`: rows in a map. The state ends with the process.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{PoisonError, RwLock};

use crate::error::EngineError;
use crate::mvcc::{Mvcc, MvccOptions};
use crate::row::{Position, Row};
use crate::row_store::{Batch, RowReader, RowStore, StorageError, StoredState};

/// Rows in memory.
#[derive(Debug, Default)]
pub struct MemoryRows {
    rows: RwLock<BTreeMap<Position, Row>>,
}

/// Creates an engine whose state ends with it.
pub fn memory_engine(quota_bytes: Option<u64>) -> Result<Mvcc, EngineError> {
    let options = MvccOptions {
        quota_bytes,
        ..MvccOptions::new("memory")
    };
    Mvcc::open(Box::new(MemoryRows::default()), options)
}

impl RowStore for MemoryRows {
    fn stored_state(&self) -> Result<StoredState, StorageError> {
        Ok(StoredState::default())
    }

    fn reader(&self) -> Result<Box<dyn RowReader + '_>, StorageError> {
        Ok(Box::new(self))
    }

    fn commit(&self, batch: &Batch) -> Result<(), StorageError> {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        for row in &batch.rows {
            rows.insert(row.at, row.clone());
        }
        for at in &batch.deleted {
            rows.remove(at);
        }
        Ok(())
    }

    fn allocated_bytes(&self) -> Result<Option<u64>, StorageError> {
        Ok(None)
    }

    fn defragment(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn is_blocking(&self) -> bool {
        false
    }
}

impl RowReader for &MemoryRows {
    fn row(&self, at: Position) -> Result<Option<Row>, StorageError> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        Ok(rows.get(&at).cloned())
    }

    fn scan(
        &self,
        from: Position,
        visit: &mut dyn FnMut(Row) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        // The lock is released between chunks, so that a long scan does not hold up commits.
        const CHUNK: usize = 1024;
        let mut from = from;
        loop {
            let chunk: Vec<Row> = {
                let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
                rows.range(from..)
                    .take(CHUNK)
                    .map(|(_, row)| row.clone())
                    .collect()
            };
            let Some(last) = chunk.last().map(|row| row.at) else {
                return Ok(());
            };
            for row in chunk {
                if visit(row).is_break() {
                    return Ok(());
                }
            }
            from = Position {
                main: last.main,
                sub: last.sub + 1,
            };
        }
    }
}
