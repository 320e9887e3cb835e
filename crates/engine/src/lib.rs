//! The storage engine protocol behind the etcd API, and the engines that ship with it.
//!
//! ```text
//!            Engine (create-if-absent, update-at-revision, … txn, leases, history)     ← the gRPC front calls this
//!               ▲                                  │ publishes
//!            Mvcc: key index, transactions,        ▼
//!            leases, compaction, group commit     Hub ──► WatchInstance (a cursor for each watch)
//!               │ rows, in revision order
//!            RowStore: MemoryRows | RedbRows | OverlayRows | …
//! ```
//!
//! **Input**: requests on keys and ranges, already checked and decoded. **Output**: answers that carry the revision at
//! which they are the truth, read together with the data.
//!
//! **Sync or async.** The protocol is async, the store below it is not. Only an engine can say where it waits: memory
//! never does; redb waits for one fsync shared by every write that arrived in the meantime, and reads pages from disk.
//! With an async protocol a write that waits costs a oneshot instead of a thread, so thousands of writes can share a
//! commit. [`RowStore`] stays synchronous, as the libraries below it are; [`Mvcc`] moves its calls to the blocking pool
//! when the store says that they block.
//!
//! **Invariants**: a revision is visible to readers and watches only when the store has it durably. A revision is never
//! used twice. A watch is a cursor into the retained history, not a queue: a slow watch costs no memory and delays
//! no other, and a progress revision can never exceed an event that its stream has not received.
//!
//! **Out of scope**: gRPC, principals and metrics (see `etcdserver`), object stores (see `store`).
//!
//! The [`conformance`] suite belongs to the protocol and runs for every engine.

mod answer;
pub mod conformance;
mod engine;
mod error;
mod expiry;
mod export;
mod hub;
mod memory;
mod mvcc;
mod redb;
mod request;
mod row;
mod row_store;
mod watch;

pub use answer::{
    ChangeEvent, DeleteAnswer, HistoryPage, KeyVersion, LeaseStatus, OpAnswer, Progress, PutAnswer,
    RangeAnswer, TxnAnswer,
};
pub use engine::{Capabilities, Engine, EngineSize, HashAnswer, WriteOutcome};
pub use error::EngineError;
pub use expiry::LeaseExpiry;
pub use hub::Hub;
pub use memory::{MemoryRows, memory_engine};
pub use mvcc::{Mvcc, MvccOptions};
pub use redb::{RedbRows, redb_engine};
pub use request::{
    Compare, CompareResult, CompareTarget, DeleteRange, HistoryQuery, KeyRange, Op, Projection,
    Put, PutLease, RangeQuery, Txn,
};
pub use row::{Change, Position, Row};
pub use row_store::{Batch, RowReader, RowStore, StorageError, StoredState};
pub use watch::{WatchInstance, WatchMessage, WatchOptions, WatchRefusal};
