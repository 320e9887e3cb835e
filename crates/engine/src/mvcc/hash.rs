//! `HashKV`: the same number a real etcd with the same history reports.

use std::ops::ControlFlow;

use mainstay_ids::Revision;
use mainstay_mvcc::schema;

use super::core::Core;
use crate::engine::HashAnswer;
use crate::error::EngineError;
use crate::request::KeyRange;
use crate::row::{Position, Row};

impl Core {
    /// Hashes the rows up to a revision. Of those at or below the compacted revision only the live ones count, so
    /// that members which removed different rows agree.
    pub(super) fn hash(&self, at: Option<Revision>) -> Result<HashAnswer, EngineError> {
        self.with_turn(|| {
            let (progress, scope) = {
                let state = self.state();
                let revision = at.unwrap_or(state.visible);
                state.check_readable(revision, state.visible)?;
                let mut live = state.index.live_range(&KeyRange::all(), revision);
                let scope = HashScope {
                    revision,
                    compacted: state.compacted,
                    has_no_live_key: live.next().is_none(),
                };
                (state.progress(), scope)
            };
            let mut hash = crc32c::crc32c(schema::KEY);
            let mut value = Vec::new();
            let reader = self.rows.reader().map_err(EngineError::Storage)?;
            reader
                .scan(Position::first_of(Revision(0)), &mut |row| {
                    if row.at.main > scope.revision {
                        return ControlFlow::Break(());
                    }
                    if self.is_hashed(&row, scope) {
                        hash = row
                            .bucket_key()
                            .with_encoded(|key| crc32c::crc32c_append(hash, key));
                        value.clear();
                        row.encode_value(&mut value);
                        hash = crc32c::crc32c_append(hash, &value);
                    }
                    ControlFlow::Continue(())
                })
                .map_err(EngineError::Storage)?;
            Ok(HashAnswer {
                hash,
                revision: scope.revision,
                progress,
            })
        })
    }

    fn is_hashed(&self, row: &Row, scope: HashScope) -> bool {
        let Some(compacted) = scope.compacted else {
            return true;
        };
        if row.at.main > compacted {
            return true;
        }
        if scope.has_no_live_key {
            return !(row.is_delete() && row.at.main == compacted);
        }
        let live = self.state().index.live(row.key(), scope.revision);
        live.is_some_and(|stamp| stamp.at == row.at)
    }
}

/// Which rows count.
#[derive(Clone, Copy)]
struct HashScope {
    revision: Revision,
    compacted: Option<Revision>,
    /// etcd then hashes every row.
    has_no_live_key: bool,
}
