//! A backup in an object store: lists its snapshots, opens its objects and proves that they can be restored.
//!
//! ```text
//! store ─ list ─► catalogue ─(archive: choose)─► chain
//!   └──── open ─► stored bytes ─ inflate ─┬ full  ─ hash ─ outline ─► revision of its database ─┐
//!                                         └ delta ─ hash ─ events ──► revisions it contains ────┴► chain reaches …
//! ```
//!
//! The restorer verifies and copies with it, and the sidecar decides with it whether older objects may be deleted: what
//! one of them calls sound, the other can use.
//!
//! **Invariants**: an object is read to its last byte. A failure of the store is never reported as damage
//! ([`ProofError::is_store_failure`]). Memory is constant for a delta and for the hash of a full snapshot, and 0.6 % of
//! the database for its revision.
//!
//! **Out of scope**: which objects to use (`archive`), writing a database (`restorer`).
//!
//! **After a crash**: this crate keeps no state.

#![cfg_attr(
    test,
    expect(
        clippy::indexing_slicing,
        reason = "tests may panic on what they built themselves"
    )
)]

mod list;
mod open;
pub mod prove;

pub use list::list_snapshots;
pub use open::{ObjectSource, ReadObjectError, read_object};
pub use prove::{ObjectProof, ProofError, ReadOptions, StopPoint};
