//! Reads, checks and writes bbolt database files, the format of etcd's `member/snap/db`.
//!
//! ```text
//! read:   disk → meta → pages → buckets → cursor → (key, value)
//!          len   choose  bounds   inline    order
//! write:  (key, value) ascending → tree → pages at the end of the file → sync → meta → sync
//! ```
//!
//! **Input**: a [`ReadAt`] (a file, or bytes in memory). **Output**: items in key order, or the result of
//! [`check()`], which names page and element.
//!
//! **Invariants**: everything read from the file is bounds-checked before use. Descents have a depth limit, an
//! iteration visits no more pages than the file has, and no allocation exceeds the file size. Writing never touches
//! a page that an older meta can reach, so a crash at any point leaves the state before or after the commit
//! ([`Update`]).
//!
//! **Out of scope**: the content of buckets (see `mvcc`), reuse of free pages, a stored freelist (etcd has none
//! either), file locks (the caller holds them), and big-endian files.
//!
//! Layout: `docs/internals/format/bbolt.md`.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::cast_possible_truncation)
)]

mod bucket;
mod bytes;
pub mod check;
mod cursor;
mod database;
mod disk;
mod error;
mod meta;
mod page;
mod spine;
mod tree;
mod update;

pub use bucket::BucketRoot;
pub use check::{CheckSummary, check};
pub use cursor::{Cursor, Direction};
pub use database::Database;
pub use disk::{Disk, ReadAt};
pub use error::{BboltError, MetaFault};
pub use meta::{DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, MIN_PAGE_SIZE, Meta};
pub use page::{LeafItem, PageKind, PageRef};
pub use tree::{OwnedItem, PagePointer};
pub use update::{BucketWriter, LeafWriter, Update, WrittenLeaf};
