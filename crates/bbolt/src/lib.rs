//! Reads, checks and writes bbolt database files: the file etcd keeps in `member/snap/db`.
//!
//! ```text
//! read:   disk → meta → pages → buckets → cursor → (key, value)
//!          len   choose  bounds   inline    order
//! write:  (key, value) ascending → tree → pages at the end of the file → sync → meta → sync
//! ```
//!
//! **Comes in**: a [`ReadAt`] (a file, or bytes in memory). **Goes out**: items in key order, or a
//! verdict of [`check()`] that names page and element.
//!
//! **Holds**: nothing read from the file is believed before it is bounds-checked; descents have a
//! depth limit; a walk visits no more pages than the file has; no allocation exceeds what the file
//! can back. Writing never touches a page that an older meta can reach, so a crash at any point
//! leaves the state before or after the commit ([`Update`]).
//!
//! **Does not do**: interpret buckets (see `mvcc`), reuse free pages, store a freelist (etcd does
//! not either), lock files (the caller does), or read foreign byte order.
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
pub use check::{Checked, check};
pub use cursor::{Cursor, Direction};
pub use database::Database;
pub use disk::{Disk, ReadAt};
pub use error::{Error, MetaFault};
pub use meta::{DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, MIN_PAGE_SIZE, Meta};
pub use page::{Item, PageKind, PageRef};
pub use tree::{OwnedItem, Pointer};
pub use update::{BucketWriter, LeafWriter, Update, WrittenLeaf};
