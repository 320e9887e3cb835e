//! Finds the revision of a database while it is streamed, without storing it.
//!
//! ```text
//! chunks ─► each page: header ─► last element ─► last row or last child      24 bytes a page
//!           first bytes (metas), root page, requested pages ───────────────► kept whole
//! at the end: root ─► bucket `key` ─► last child ─► … ─► last row; bucket `meta` ─► compaction
//! ```
//!
//! Which pages are in use is known only at the end: a page may lie before or after the one that points to it, and free
//! pages keep their old content. So every page that looks like a branch or a leaf leaves a trace, and only traces
//! on the path from the root are used. A stale header may claim overflow pages that are reused by now, so no page is
//! skipped because of it.
//!
//! The traces then serve as a database: [`Outline`] answers reads of the engine with pages that have only their last
//! element, which is all that the path to the last row needs. If the engine reads a page for which this is not enough (a
//! root bucket of several pages, a `meta` bucket with its own pages), the error names the page, and another pass keeps
//! it whole.
//!
//! Memory: 24 bytes per page (0.6 % of the file), and the pages kept whole.

mod window;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::io;

use mainstay_bbolt::{BboltError, Database, MAX_PAGE_SIZE, MIN_PAGE_SIZE, Meta, ReadAt};
use mainstay_ids::{PageId, Revision};
use mainstay_mvcc::{DatabaseStatus, DatabaseStatusError, RevisionKey};

use self::window::{FileWindow, u16_at, u32_at, u64_at};

/// Contains both meta pages for every page size.
const FIRST_BYTES: usize = 2 * MAX_PAGE_SIZE as usize;
/// Size of a page header, and of an element.
const HEADER_BYTES: usize = 16;
/// Offset of the key of a single element, relative to the element.
const KEY_OFFSET: u32 = 16;
/// Length of the key of a row that is not a tombstone.
const ROW_KEY_BYTES: u32 = 17;
/// Longest single read: a revision key with the mark of a tombstone.
const MAX_READ_BYTES: usize = 18;
/// Limit of a page kept whole: far more than the root of ten buckets needs.
const MAX_WHOLE_PAGE_BYTES: u64 = 16 << 20;
/// Traces per block; blocks avoid copying all traces when the list grows.
const TRACES_PER_BLOCK: usize = 16 << 10;

const BRANCH_FLAG: u16 = 0x01;
const LEAF_FLAG: u16 = 0x02;
const BUCKET_FLAG: u32 = 0x01;

/// Error of reading the facts from an outline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum OutlineError {
    /// Too little of a needed page was kept: read the stream again and keep the page whole.
    #[error("page {page} was not kept")]
    PageNotKept { page: PageId },
    /// The database is damaged, or not a database of etcd.
    #[error(transparent)]
    Facts(#[from] DatabaseStatusError),
}

/// Last element of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastElement {
    /// A branch whose last child is this page.
    Child(PageId),
    /// A leaf whose last row has this revision.
    Row(Revision),
    /// A leaf without rows.
    Empty,
}

#[derive(Clone, Copy, Debug)]
struct Trace {
    page: PageId,
    last: LastElement,
}

/// A read of bytes that have not arrived yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PendingRead {
    offset: u64,
    page: PageId,
    kind: PendingReadKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PendingReadKind {
    /// The last element of a branch.
    BranchElement,
    /// The last element of a leaf that ends at this offset of the file.
    LeafElement { end: u64 },
    /// The last key of a leaf.
    Key { len: usize },
}

impl PendingReadKind {
    fn len(self) -> usize {
        match self {
            Self::BranchElement | Self::LeafElement { .. } => HEADER_BYTES,
            Self::Key { len } => len,
        }
    }
}

/// The kept parts of a streamed database.
#[derive(Debug)]
pub(crate) struct Outline {
    first_bytes: Vec<u8>,
    meta: Option<Meta>,
    length: u64,
    /// Last bytes of the stream so far; the next field is the offset of the first.
    window: Vec<u8>,
    window_start: u64,
    next_page: u64,
    pending: BinaryHeap<Reverse<PendingRead>>,
    traces: Vec<Vec<Trace>>,
    whole_pages: BTreeMap<PageId, Vec<u8>>,
    missing_page: Cell<Option<PageId>>,
}

impl Outline {
    /// Creates an outline that keeps the given pages whole, besides the root.
    pub(crate) fn new(keep: &BTreeSet<PageId>) -> Self {
        Self {
            first_bytes: Vec::new(),
            meta: None,
            length: 0,
            window: Vec::new(),
            window_start: 0,
            next_page: 0,
            pending: BinaryHeap::new(),
            traces: Vec::new(),
            whole_pages: keep.iter().map(|page| (*page, Vec::new())).collect(),
            missing_page: Cell::new(None),
        }
    }

    /// Processes the next bytes of the file.
    ///
    /// # Errors
    /// Both meta pages are damaged: without the page size nothing after them can be parsed.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Result<(), BboltError> {
        self.length += chunk.len() as u64;
        if self.meta.is_some() {
            self.scan(chunk);
            return Ok(());
        }
        let wanted = FIRST_BYTES.saturating_sub(self.first_bytes.len());
        let (head, rest) = chunk.split_at(wanted.min(chunk.len()));
        self.first_bytes.extend_from_slice(head);
        if self.first_bytes.len() == FIRST_BYTES {
            self.read_meta()?;
            self.scan(rest);
        }
        Ok(())
    }

    /// Reads the facts of the database after the whole file was pushed.
    ///
    /// # Errors
    /// The error of reading the file itself, or the page that must be kept whole.
    pub(crate) fn facts(&mut self) -> Result<DatabaseStatus, OutlineError> {
        if self.meta.is_none() {
            self.read_meta().map_err(DatabaseStatusError::from)?;
        }
        self.missing_page.set(None);
        let facts = Database::open(&*self)
            .map_err(DatabaseStatusError::from)
            .and_then(|database| DatabaseStatus::read(&database));
        match (facts, self.missing_page.get()) {
            (Err(_), Some(page)) => Err(OutlineError::PageNotKept { page }),
            (facts, _) => Ok(facts?),
        }
    }

    /// Parses the meta pages, which give the page size and the root.
    fn read_meta(&mut self) -> Result<(), BboltError> {
        let meta = Meta::from_first_bytes(&self.first_bytes)?;
        self.whole_pages.entry(meta.root).or_default();
        self.meta = Some(meta);
        let first = std::mem::take(&mut self.first_bytes);
        self.scan(&first);
        self.first_bytes = first;
        Ok(())
    }

    fn scan(&mut self, chunk: &[u8]) {
        let Some(meta) = self.meta else { return };
        self.window.extend_from_slice(chunk);
        let window = std::mem::take(&mut self.window);
        let view = FileWindow {
            bytes: &window,
            start: self.window_start,
        };
        while let Some(Reverse(read)) = self.pending.peek().copied() {
            if !self.try_read(read, &view) {
                break;
            }
            self.pending.pop();
        }
        let page_size = u64::from(meta.page_size);
        // Pages after the high-water mark do not belong to the database.
        while self.next_page < meta.high_water.0
            && let Some(header) = view.get(self.next_page.saturating_mul(page_size), HEADER_BYTES)
        {
            self.scan_page(PageId(self.next_page), header, page_size, &view);
            self.next_page += 1;
        }
        self.collect_whole_pages(page_size, &view);
        self.window = window;
        // A read that could not be served starts in the last bytes, so they are enough.
        let spent = self.window.len().saturating_sub(MAX_READ_BYTES);
        self.window.drain(..spent);
        self.window_start += spent as u64;
    }

    fn scan_page(&mut self, page: PageId, header: &[u8], page_size: u64, view: &FileWindow<'_>) {
        let (Some(id), Some(flags), Some(count), Some(overflow)) = (
            u64_at(header, 0),
            u16_at(header, 8),
            u16_at(header, 10),
            u32_at(header, 12),
        ) else {
            return;
        };
        // A page stores its own id, so bytes inside an overflow page rarely pass for a header.
        if id != page.0 || (flags != BRANCH_FLAG && flags != LEAF_FLAG) {
            return;
        }
        let start = page.0.saturating_mul(page_size);
        let end = start.saturating_add((u64::from(overflow) + 1).saturating_mul(page_size));
        let kind = match (flags, count) {
            (LEAF_FLAG, 0) => return self.add_trace(page, LastElement::Empty),
            (_, 0) => return,
            (LEAF_FLAG, _) => PendingReadKind::LeafElement { end },
            _ => PendingReadKind::BranchElement,
        };
        let offset = start + u64::from(count) * HEADER_BYTES as u64;
        if offset + HEADER_BYTES as u64 <= end {
            self.request_read(PendingRead { offset, page, kind }, view);
        }
    }

    fn request_read(&mut self, read: PendingRead, view: &FileWindow<'_>) {
        if !self.try_read(read, view) {
            self.pending.push(Reverse(read));
        }
    }

    /// Returns `false` if the bytes have not arrived yet.
    fn try_read(&mut self, read: PendingRead, view: &FileWindow<'_>) -> bool {
        let Some(bytes) = view.get(read.offset, read.kind.len()) else {
            return false;
        };
        match read.kind {
            PendingReadKind::BranchElement => {
                if let Some(child) = u64_at(bytes, 8) {
                    self.add_trace(read.page, LastElement::Child(PageId(child)));
                }
            }
            PendingReadKind::LeafElement { end } => {
                if let Some(key) = locate_last_key(read, bytes, end) {
                    self.request_read(key, view);
                }
            }
            PendingReadKind::Key { .. } => {
                if let Ok(row) = RevisionKey::decode(bytes) {
                    self.add_trace(read.page, LastElement::Row(row.main));
                }
            }
        }
        true
    }

    fn add_trace(&mut self, page: PageId, last: LastElement) {
        let trace = Trace { page, last };
        if let Some(block) = self
            .traces
            .last_mut()
            .filter(|block| block.len() < TRACES_PER_BLOCK)
        {
            block.push(trace);
            return;
        }
        let mut block = Vec::with_capacity(TRACES_PER_BLOCK);
        block.push(trace);
        self.traces.push(block);
    }

    /// Appends the bytes of the window that belong to pages kept whole.
    fn collect_whole_pages(&mut self, page_size: u64, view: &FileWindow<'_>) {
        for (page, kept) in &mut self.whole_pages {
            let start = page.0.saturating_mul(page_size);
            // Once for the page, and once more for the overflow pages its header claims.
            for _ in 0..2 {
                let pages = u64::from(u32_at(kept, 12).unwrap_or(0)) + 1;
                let wanted = pages.saturating_mul(page_size).min(MAX_WHOLE_PAGE_BYTES);
                let from = start.saturating_add(kept.len() as u64);
                kept.extend_from_slice(view.slice(from, start.saturating_add(wanted)));
            }
        }
    }

    fn last_element(&self, page: PageId) -> Option<LastElement> {
        // A linear search suffices: only the few pages on the path to the last row are looked up.
        let mut traces = self.traces.iter().flatten();
        traces
            .find(|trace| trace.page == page)
            .map(|trace| trace.last)
    }
}

/// Returns the read of the last key of a leaf, if it can be a revision.
fn locate_last_key(element: PendingRead, bytes: &[u8], end: u64) -> Option<PendingRead> {
    let (flags, position) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
    let len = usize::try_from(u32_at(bytes, 8)?).ok()?;
    let offset = element.offset.checked_add(u64::from(position))?;
    let is_revision =
        flags & BUCKET_FLAG == 0 && (len == MAX_READ_BYTES - 1 || len == MAX_READ_BYTES);
    let is_behind = position >= KEY_OFFSET;
    let is_inside = offset.checked_add(len as u64)? <= end;
    (is_revision && is_behind && is_inside).then_some(PendingRead {
        offset,
        page: element.page,
        kind: PendingReadKind::Key { len },
    })
}

/// Serves the reads of the engine: metas in a few bytes, pages whole.
impl ReadAt for Outline {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if buffer.len() < MIN_PAGE_SIZE as usize {
            return self.first_bytes.read_exact_at(buffer, offset);
        }
        let page_size = self.meta.map_or(1, |meta| u64::from(meta.page_size));
        let kept = self
            .whole_pages
            .range(..=PageId(offset / page_size))
            .next_back();
        if let Some((page, bytes)) = kept
            && let Some(at) = offset.checked_sub(page.0.saturating_mul(page_size))
            && at < (bytes.len() as u64).max(page_size)
        {
            return bytes.read_exact_at(buffer, at);
        }
        let page = PageId(offset / page_size);
        if let Some(end) = self.last_element(page) {
            return write_last_element_page(page, end, buffer);
        }
        self.missing_page.set(Some(page));
        Err(io::ErrorKind::NotFound.into())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.length)
    }
}

/// Fills `buffer` with a page that has the last element of the real one, and no value.
fn write_last_element_page(page: PageId, end: LastElement, buffer: &mut [u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(2 * HEADER_BYTES + MAX_READ_BYTES);
    let (flags, count) = match end {
        LastElement::Child(_) => (BRANCH_FLAG, 1u16),
        LastElement::Row(_) => (LEAF_FLAG, 1),
        LastElement::Empty => (LEAF_FLAG, 0),
    };
    bytes.extend_from_slice(&page.0.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    let behind_element = KEY_OFFSET.to_le_bytes();
    match end {
        LastElement::Child(child) => {
            bytes.extend_from_slice(&behind_element);
            bytes.extend_from_slice(&0u32.to_le_bytes()); // the path to the last row compares no keys
            bytes.extend_from_slice(&child.0.to_le_bytes());
        }
        LastElement::Row(revision) => RevisionKey::first_of(revision).with_encoded(|key| {
            bytes.extend_from_slice(&0u32.to_le_bytes());
            bytes.extend_from_slice(&behind_element);
            bytes.extend_from_slice(&ROW_KEY_BYTES.to_le_bytes());
            bytes.extend_from_slice(&0u32.to_le_bytes());
            bytes.extend_from_slice(key);
        }),
        LastElement::Empty => {}
    }
    buffer.fill(0);
    let room = buffer
        .get_mut(..bytes.len())
        .ok_or(io::ErrorKind::InvalidInput)?;
    room.copy_from_slice(&bytes);
    Ok(())
}

#[cfg(test)]
mod tests;
