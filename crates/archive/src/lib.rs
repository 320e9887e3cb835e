//! Says what a bucket holds, which objects make up a wanted state, and what bytes those objects are.
//!
//! ```text
//! listing → catalogue → chain ┐
//!  layout     names    choose  │          compressed bytes → decoder → DeltaReader → events
//!                              └ objects ─► (the store)        gzip…      sha-256     dense, exact
//!                                         events → DeltaWriter → encoder → compressed bytes
//! ```
//!
//! **Comes in**: a list of object keys, and byte streams of objects. **Goes out**: a [`chain::Chain`] of
//! objects that reaches a target, and [`delta::Event`]s in the order etcd committed them.
//!
//! **Holds**: the key name is the metadata, as the peer writes it ([`name`], [`layout`]); choosing is pure
//! and never stops silently before objects it cannot connect ([`chain`]); memory is bounded by constants
//! plus the largest single event; truncated or altered streams end in an error, never in a short success.
//! **Does not do**: talk to a store, read a clock, interpret a database (see `bbolt` and `mvcc`).
//!
//! **After a crash**: nothing here keeps state; reading again gives the same answer.

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
pub mod layout;
pub mod name;
pub mod retention;
