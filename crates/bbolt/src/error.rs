//! What can be wrong with a database file, with the page and element where it was found.

use std::io;

use mainstay_ids::PageId;

/// Why one of the two meta pages cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetaFault {
    /// The file ends before it.
    #[error("the file is too short to hold it")]
    Absent,
    /// Not a bbolt file, or overwritten.
    #[error("wrong magic number {0:#010x}")]
    Magic(u32),
    /// The magic number is there with its bytes reversed.
    #[error("written on a machine of the other byte order, which is not supported")]
    ByteOrder,
    /// A format this reader does not know.
    #[error("format version {0}, this reader knows version 2")]
    Version(u32),
    /// Damaged: the checksum does not cover these bytes.
    #[error("checksum is {stored:016x}, computed {computed:016x}")]
    Checksum {
        /// As stored in the page.
        stored: u64,
        /// Over the bytes found.
        computed: u64,
    },
    /// The checksum is right and the page size is impossible.
    #[error("page size {0} is not a power of two between 1024 and 65536")]
    PageSize(u32),
}

/// A file that cannot be read as a database, or cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BboltError {
    /// The disk refused a read.
    #[error("read {len} bytes at byte {offset}")]
    Read {
        /// First byte wanted.
        offset: u64,
        /// How many.
        len: usize,
        /// The disk's answer.
        source: io::Error,
    },
    /// The disk refused a write.
    #[error("write {len} bytes at byte {offset}")]
    Write {
        /// First byte.
        offset: u64,
        /// How many.
        len: usize,
        /// The disk's answer.
        source: io::Error,
    },
    /// The disk could not make the written bytes durable.
    #[error("sync the database file")]
    Sync {
        /// The disk's answer.
        source: io::Error,
    },
    /// Neither meta page is usable.
    #[error("no usable meta page: page 0: {first}; page 1: {second}")]
    NoMeta {
        /// What is wrong with page 0.
        first: MetaFault,
        /// What is wrong with page 1.
        second: MetaFault,
    },
    /// The file is shorter than its meta page says.
    #[error("file is truncated: {needed} bytes are in use but only {actual} are there")]
    Truncated {
        /// High-water mark in bytes.
        needed: u64,
        /// File length.
        actual: u64,
    },
    /// A pointer leads outside the file.
    #[error("page {page} is outside the {pages} pages in use")]
    OutOfRange {
        /// The page pointed at (its last physical page).
        page: PageId,
        /// Pages in use.
        pages: u64,
    },
    /// A page that calls itself something else than its position.
    #[error("page {page} identifies itself as page {found}")]
    WrongId {
        /// Position.
        page: PageId,
        /// Id in the header.
        found: u64,
    },
    /// A page that is neither branch nor leaf where one of them must be.
    #[error("page {page} has type flags {flags:#06x}, expected a branch or a leaf")]
    WrongKind {
        /// The page.
        page: PageId,
        /// The flags found.
        flags: u16,
    },
    /// A logical page too large to be true.
    #[error("page {page} claims {pages} physical pages, more than this reader accepts")]
    Oversized {
        /// The page.
        page: PageId,
        /// Physical pages claimed.
        pages: u64,
    },
    /// An element whose key or value lies outside its page.
    #[error("element {element} of page {page} reaches outside the page")]
    ElementOutOfBounds {
        /// The page; 0 for the image of an inline bucket.
        page: PageId,
        /// Ordinal in the page.
        element: usize,
    },
    /// A key that does not follow the one before it.
    #[error("key of element {element} of page {page} is not greater than the key before it")]
    KeyOrder {
        /// The page; 0 for the image of an inline bucket.
        page: PageId,
        /// Ordinal in the page.
        element: usize,
    },
    /// A branch key that is not the first key of its child.
    #[error("element {element} of branch page {page} does not carry the first key of page {child}")]
    SeparatorMismatch {
        /// The branch.
        page: PageId,
        /// Ordinal in the branch.
        element: usize,
        /// The child.
        child: PageId,
    },
    /// A branch that etcd would crash on at the next rebalance.
    #[error("branch page {page} has {children} children, at least 2 are needed")]
    TooFewChildren {
        /// The branch.
        page: PageId,
        /// Its children.
        children: usize,
    },
    /// Leaves of one bucket at different depths.
    #[error("leaf page {page} is at depth {depth}, the leaves before it are at depth {expected}")]
    UnevenDepth {
        /// The leaf.
        page: PageId,
        /// Its depth.
        depth: usize,
        /// Depth of the first leaf.
        expected: usize,
    },
    /// An empty leaf where the last key of a tree should be.
    #[error("leaf page {page} at the edge of the tree holds no key it should")]
    EmptyLeaf {
        /// The leaf.
        page: PageId,
    },
    /// A page used in two places.
    #[error("page {page} is referenced twice")]
    SharedPage {
        /// The page.
        page: PageId,
    },
    /// A tree deeper than any real one.
    #[error("page {page} is more than {limit} levels below its root")]
    TooDeep {
        /// Where the descent was stopped.
        page: PageId,
        /// The limit.
        limit: usize,
    },
    /// More pages visited than the file has: the tree has a loop.
    #[error("the walk visited more pages than the file has: page {page} is part of a loop")]
    PageLoop {
        /// Where the walk was stopped.
        page: PageId,
    },
    /// A bucket entry that is not a bucket header.
    #[error("entry {name:?} of the root bucket is not a bucket header")]
    InvalidBucketHeader {
        /// Name of the entry, lossily.
        name: String,
    },
    /// A bucket inside a bucket, which etcd never makes.
    #[error("element {element} of page {page} is a nested bucket")]
    NestedBucket {
        /// The page.
        page: PageId,
        /// Ordinal in the page.
        element: usize,
    },
    /// An item the format cannot hold.
    #[error("item with a key of {key_len} and a value of {value_len} bytes cannot be stored")]
    UnstorableItem {
        /// Key length.
        key_len: usize,
        /// Value length.
        value_len: usize,
    },
    /// Items must be given in ascending key order.
    #[error("an item was given that does not follow the one before it")]
    NotAscending,
    /// More pages than a page id or an offset can address.
    #[error("the file would exceed the largest possible size")]
    FileTooLarge,
}
