//! Errors of a database file, with the page and element where they were found.

use std::io;

use mainstay_ids::PageId;

/// Why one of the two meta pages cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetaFault {
    /// The file ends before the page.
    #[error("file too short")]
    Absent,
    /// Not a bbolt file, or the page was overwritten.
    #[error("wrong magic number {0:#010x}")]
    Magic(u32),
    /// The magic number has its bytes reversed.
    #[error("big-endian file, not supported")]
    ByteOrder,
    /// An unsupported format version.
    #[error("unsupported format version {0}, expected 2")]
    Version(u32),
    /// The checksum does not match.
    #[error("checksum mismatch: stored {stored:016x}, computed {computed:016x}")]
    Checksum {
        /// Checksum in the page.
        stored: u64,
        /// Checksum of the bytes in the page.
        computed: u64,
    },
    /// The checksum matches, but the page size is invalid.
    #[error("invalid page size {0}, must be a power of two between 1024 and 65536")]
    PageSize(u32),
}

/// Why a database file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BboltError {
    /// A read failed.
    #[error("read {len} bytes at byte {offset}")]
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len: usize,
        /// Error of the disk.
        source: io::Error,
    },
    /// A write failed.
    #[error("write {len} bytes at byte {offset}")]
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len: usize,
        /// Error of the disk.
        source: io::Error,
    },
    /// Syncing the file failed.
    #[error("sync database file")]
    Sync {
        /// Error of the disk.
        source: io::Error,
    },
    /// Neither meta page is usable.
    #[error("no usable meta page: page 0: {first}; page 1: {second}")]
    NoMeta {
        /// Defect of page 0.
        first: MetaFault,
        /// Defect of page 1.
        second: MetaFault,
    },
    /// The file is shorter than its meta page requires.
    #[error("file truncated: {actual} bytes long, {needed} bytes in use")]
    Truncated {
        /// High-water mark in bytes.
        needed: u64,
        /// File length in bytes.
        actual: u64,
    },
    /// A pointer leads outside the pages in use.
    #[error("page {page} is outside the {pages} pages in use")]
    OutOfRange {
        /// The page pointed at (its last physical page).
        page: PageId,
        /// Number of pages in use.
        pages: u64,
    },
    /// The id in a page header differs from the position of the page.
    #[error("page {page} has id {found} in its header")]
    WrongId {
        /// Position of the page.
        page: PageId,
        /// Id in the header.
        found: u64,
    },
    /// A page is neither branch nor leaf where one of them is required.
    #[error("page {page} has type flags {flags:#06x}, expected a branch or a leaf")]
    WrongKind {
        /// Id of the page.
        page: PageId,
        /// Type flags in the header.
        flags: u16,
    },
    /// A logical page exceeds the size limit.
    #[error("page {page} spans {pages} physical pages, more than supported")]
    Oversized {
        /// Id of the page.
        page: PageId,
        /// Number of physical pages according to the header.
        pages: u64,
    },
    /// The key or value of an element lies outside its page.
    #[error("element {element} of page {page} reaches outside the page")]
    ElementOutOfBounds {
        /// The page; 0 for the image of an inline bucket.
        page: PageId,
        /// Index of the element in the page.
        element: usize,
    },
    /// A key is not greater than the one before it.
    #[error("key of element {element} of page {page} is not greater than the key before it")]
    KeyOrder {
        /// The page; 0 for the image of an inline bucket.
        page: PageId,
        /// Index of the element in the page.
        element: usize,
    },
    /// A branch key is not the first key of its child.
    #[error("element {element} of branch page {page} does not carry the first key of page {child}")]
    SeparatorMismatch {
        /// Id of the branch page.
        page: PageId,
        /// Index of the element in the branch.
        element: usize,
        /// Id of the child page.
        child: PageId,
    },
    /// A branch has fewer than two children; etcd panics on it at the next rebalance.
    #[error("branch page {page} has {children} children, expected at least 2")]
    TooFewChildren {
        /// Id of the branch page.
        page: PageId,
        /// Number of children.
        children: usize,
    },
    /// Leaves of one bucket have different depths.
    #[error("leaf page {page} is at depth {depth}, expected depth {expected}")]
    UnevenDepth {
        /// Id of the leaf page.
        page: PageId,
        /// Depth of the leaf.
        depth: usize,
        /// Depth of the first leaf.
        expected: usize,
    },
    /// The leaf at the right edge of a tree has no key in the expected range.
    #[error("leaf page {page} at the right edge of the tree has no key in its range")]
    EmptyLeaf {
        /// Id of the leaf page.
        page: PageId,
    },
    /// Two pointers lead to one page.
    #[error("page {page} is referenced more than once")]
    SharedPage {
        /// Id of the page.
        page: PageId,
    },
    /// A tree exceeds the depth limit.
    #[error("page {page} is more than {limit} levels below its root")]
    TooDeep {
        /// Page at which the descent stopped.
        page: PageId,
        /// Maximum depth.
        limit: usize,
    },
    /// More pages visited than the file has: the tree has a loop.
    #[error("loop in the tree at page {page}: more pages visited than the file has")]
    PageLoop {
        /// Page at which the iteration stopped.
        page: PageId,
    },
    /// An entry of the root bucket is not a bucket header.
    #[error("entry {name:?} of the root bucket is not a bucket header")]
    InvalidBucketHeader {
        /// Name of the entry, invalid UTF-8 replaced.
        name: String,
    },
    /// A bucket inside a bucket, which etcd never creates.
    #[error("element {element} of page {page} is a nested bucket")]
    NestedBucket {
        /// Id of the page.
        page: PageId,
        /// Index of the element in the page.
        element: usize,
    },
    /// An item exceeds the limits of the format, or its key is empty.
    #[error("cannot store an item with a key of {key_len} bytes and a value of {value_len} bytes")]
    UnstorableItem {
        /// Key length in bytes.
        key_len: usize,
        /// Value length in bytes.
        value_len: usize,
    },
    /// Items were not added in ascending key order.
    #[error("items not in ascending key order")]
    NotAscending,
    /// More pages than a page id or an offset can address.
    #[error("file exceeds the largest possible size")]
    FileTooLarge,
}
