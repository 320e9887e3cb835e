//! Backup format: classifies the objects of a bucket, selects those that restore a target, reads and writes them.
//!
//! ```text
//! listing → catalogue → chain ┐
//!  layout     names    choose  │          compressed bytes → decoder → DeltaReader → events
//!                              └ objects ─► (the store)        gzip…      sha-256     dense, exact
//!                                         events → DeltaWriter → encoder → compressed bytes
//! ```
//!
//! **Input**: object keys and the byte streams of objects. **Output**: a [`chain::SnapshotChain`] of objects that restores
//! a target, and [`delta::Event`]s in the order etcd committed them.
//!
//! **Invariants**: the object name is the metadata, as in etcd-backup-restore ([`name`], [`layout`]). Selection is
//! pure and reports objects it cannot connect as an error ([`chain`]). Memory is bounded by constants plus the
//! largest single event. A truncated or altered stream ends in an error, never in a short success.
//!
//! **Out of scope**: store access, clocks, the content of a database (see `bbolt` and `mvcc`).
//!
//! **After a crash**: this crate keeps no state; reading again gives the same result.

#![deny(clippy::indexing_slicing, clippy::cast_possible_truncation)]
#![cfg_attr(
    test,
    expect(
        clippy::indexing_slicing,
        reason = "tests may panic on what they built themselves"
    )
)]

pub mod catalogue;
pub mod chain;
pub mod compression;
pub mod delta;
pub mod full;
pub mod layout;
pub mod name;
pub mod retention;
