//! Reads: at the visible revision, without holding up writes while rows are fetched.

use std::ops::ControlFlow;

use mainstay_ids::Revision;

use super::compare::{Decision, decide};
use super::core::Core;
use super::state::{FetchError, State, fetch};
use crate::answer::{ChangeEvent, HistoryPage, KeyVersion, OpAnswer, RangeAnswer, TxnAnswer};
use crate::error::EngineError;
use crate::request::{HistoryQuery, KeyRange, Op, RangeQuery, Txn};
use crate::row::{Change, Position, Row};
use crate::row_store::RowReader;

/// Rows read for one page of history, so that a watch of few keys cannot scan everything in one call.
const MOST_ROWS: usize = 4096;

impl Core {
    pub(super) fn range(&self, query: &RangeQuery) -> Result<RangeAnswer, EngineError> {
        again_when_moved(|| {
            let (found, revision) = {
                let state = self.state();
                (state.find(query, state.visible)?, state.visible)
            };
            // Opened after the search: a reader is at least as new as the revision.
            let reader = self.rows.reader().map_err(EngineError::Storage)?;
            let keys = fetch(&*reader, None, &found.positions)?;
            Ok(RangeAnswer {
                revision,
                keys,
                count: found.count,
            })
        })
    }

    /// A transaction that cannot write. It observes one revision throughout.
    pub(super) fn read_txn(&self, txn: &Txn) -> Result<TxnAnswer, EngineError> {
        again_when_moved(|| {
            // The reader is at least as new as this revision. It is opened without the state locked: a defragmentation waits
            // for readers, and writers hold a reader while they wait for the state.
            let at = self.state().visible;
            let reader = self.rows.reader().map_err(EngineError::Storage)?;
            let state = self.state();
            let decision = decide(txn, &state, (&*reader, at))?;
            check(&decision, &state, at)?;
            let mut answer = read_ops(&decision, &state, (&*reader, at))?;
            answer.revision = at;
            Ok(answer)
        })
    }

    pub(super) fn history(&self, query: &HistoryQuery) -> Result<HistoryPage, EngineError> {
        let reader = self.rows.reader().map_err(EngineError::Storage)?;
        let mut page = PageBuilder::new(query);
        reader
            .scan(Position::first_of(query.from), &mut |row| page.add(row))
            .map_err(EngineError::Storage)?;
        let mut page = page.finish();
        if query.wants_previous {
            self.add_previous(&*reader, &mut page.events)?;
        }
        // Checked last: a compaction may have removed rows while they were read.
        match self.state().compacted {
            Some(oldest) if query.from < oldest => Err(EngineError::Compacted { oldest }),
            _ => Ok(page),
        }
    }

    fn add_previous(
        &self,
        reader: &dyn RowReader,
        events: &mut [ChangeEvent],
    ) -> Result<(), EngineError> {
        for event in events.iter_mut().filter(|event| !event.is_create()) {
            let before = event.version.mod_revision.previous();
            let found = {
                let state = self.state();
                let is_compacted = state.compacted.is_some_and(|oldest| before < oldest);
                if is_compacted {
                    None
                } else {
                    state.index.live(&event.version.key, before)
                }
            };
            let Some(stamp) = found else { continue };
            event.previous = match fetch(reader, None, &[stamp.at]) {
                Ok(versions) => versions.into_iter().next(),
                Err(FetchError::Moved) => None, // compacted in the meantime
                Err(FetchError::Storage(error)) => return Err(EngineError::Storage(error)),
            };
        }
        Ok(())
    }
}

/// Repeats a read when a compaction removed its rows: the next attempt reports that, or reads a later revision.
fn again_when_moved<T>(mut read: impl FnMut() -> Result<T, ReadError>) -> Result<T, EngineError> {
    loop {
        match read() {
            Ok(answer) => return Ok(answer),
            Err(ReadError::Engine(error)) => return Err(error),
            Err(ReadError::Fetch(FetchError::Storage(error))) => {
                return Err(EngineError::Storage(error));
            }
            Err(ReadError::Fetch(FetchError::Moved)) => std::thread::yield_now(),
        }
    }
}

enum ReadError {
    Engine(EngineError),
    Fetch(FetchError),
}

impl From<EngineError> for ReadError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<FetchError> for ReadError {
    fn from(error: FetchError) -> Self {
        Self::Fetch(error)
    }
}

fn check(decision: &Decision<'_>, state: &State, at: Revision) -> Result<(), EngineError> {
    for op in decision.ops {
        if let Op::Range(RangeQuery {
            at: Some(asked), ..
        }) = op
        {
            state.check_readable(*asked, at)?;
        }
    }
    decision
        .nested
        .iter()
        .try_for_each(|inner| check(inner, state, at))
}

fn read_ops(
    decision: &Decision<'_>,
    state: &State,
    (reader, at): (&dyn RowReader, Revision),
) -> Result<TxnAnswer, ReadError> {
    let mut nested = decision.nested.iter();
    let mut answers = Vec::with_capacity(decision.ops.len());
    for op in decision.ops {
        match op {
            Op::Range(query) => {
                let found = state.find(query, at)?;
                answers.push(OpAnswer::Range(RangeAnswer {
                    revision: at,
                    keys: fetch(reader, None, &found.positions)?,
                    count: found.count,
                }));
            }
            Op::Txn(_) => {
                if let Some(inner) = nested.next() {
                    answers.push(OpAnswer::Txn(read_ops(inner, state, (reader, at))?));
                }
            }
            Op::Put(_) | Op::DeleteRange(_) => {} // checked by the caller
        }
    }
    Ok(TxnAnswer {
        revision: Revision(0),
        succeeded: decision.succeeded,
        answers,
    })
}

/// Collects whole revisions until the page is full.
struct PageBuilder<'q> {
    range: &'q KeyRange,
    upto: Revision,
    max_bytes: usize,
    page: HistoryPage,
    bytes: usize,
    rows: usize,
    /// Revision of the last row.
    last: Revision,
}

impl<'q> PageBuilder<'q> {
    fn new(query: &'q HistoryQuery) -> Self {
        Self {
            range: &query.range,
            upto: query.upto,
            max_bytes: query.max_bytes,
            page: HistoryPage {
                events: Vec::new(),
                reached: query.upto,
            },
            bytes: 0,
            rows: 0,
            last: query.from,
        }
    }

    fn add(&mut self, row: Row) -> ControlFlow<()> {
        let main = row.at.main;
        if main > self.upto {
            return ControlFlow::Break(());
        }
        let is_full = self.bytes >= self.max_bytes || self.rows >= MOST_ROWS;
        if is_full && main > self.last {
            self.page.reached = self.last;
            return ControlFlow::Break(());
        }
        self.last = main;
        self.rows += 1;
        if self.range.contains(row.key()) {
            let event = event_of(row);
            self.bytes += event.size();
            self.page.events.push(event);
        }
        ControlFlow::Continue(())
    }

    fn finish(self) -> HistoryPage {
        self.page
    }
}

fn event_of(row: Row) -> ChangeEvent {
    let mod_revision = row.at.main;
    let (is_delete, version) = match row.change {
        Change::Put(version) => (false, version),
        Change::Delete(key) => {
            let deleted = KeyVersion {
                key,
                mod_revision,
                ..KeyVersion::default()
            };
            (true, deleted)
        }
    };
    ChangeEvent {
        is_delete,
        version,
        previous: None,
    }
}
