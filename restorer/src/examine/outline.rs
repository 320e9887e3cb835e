//! Finds where a database stands while it streams by.
//!
//! ```text
//! pieces ─► each page: header ─► last element ─► last row or last child      24 bytes a page
//!           first bytes (metas), root page, pages asked for ───────────────► kept whole
//! at the end: root ─► bucket `key` ─► last child ─► … ─► last row; bucket `meta` ─► compaction
//! ```
//!
//! Which page is in use is known only at the end, since a page may lie before or behind the one that
//! points to it, and pages no longer in use keep their old content. So every page that looks like a
//! branch or a leaf leaves a trace, and only those on the way from the root are believed. A stale
//! header may claim overflow pages that were given away since; nothing is skipped on its word.
//!
//! The traces then play a database: [`Outline`] answers the engine's reads with pages that have their
//! last element only, which is all that a walk to the last row looks at. Where the engine wants a page
//! of which that is not enough (a root bucket of several pages, a `meta` bucket with pages of its own),
//! the error says which, and another pass keeps it whole.
//!
//! Memory: 24 bytes for each page (six thousandths of the file), and the pages kept whole.

mod view;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::io;

use mainstay_bbolt::{Database, Error as BboltError, MAX_PAGE_SIZE, MIN_PAGE_SIZE, Meta, ReadAt};
use mainstay_ids::{PageId, Revision};
use mainstay_mvcc::{Facts, FactsError, RevisionKey};

use self::view::{View, u16_at, u32_at, u64_at};

/// Enough to find both meta pages whatever the page size.
const FIRST_BYTES: usize = 2 * MAX_PAGE_SIZE as usize;
/// Bytes of a page header, and of an element.
const HEADER: usize = 16;
/// Where the key of a lone element lies, counted from the element.
const BEHIND_ELEMENT: u32 = 16;
/// Length of the key of a row that is no delete.
const ROW_KEY: u32 = 17;
/// The longest bytes looked at in one go: a revision key with its mark.
const LONGEST_ASK: usize = 18;
/// The most that is kept of one page: far more than the root of ten buckets can be.
const WHOLE_LIMIT: u64 = 16 << 20;
/// Traces come in blocks of this many, so that growing never copies them.
const BLOCK: usize = 16 << 10;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const BUCKET: u32 = 0x01;

/// Why an outline does not tell where its database stands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutlineError {
    /// A page was needed of which too little was kept: pass the stream again and ask for it.
    #[error("page {page} was not kept")]
    NotKept {
        /// Which page.
        page: PageId,
    },
    /// The database is damaged, or not one of etcd.
    #[error(transparent)]
    Facts(#[from] FactsError),
}

/// How a page ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A branch whose last child is this page.
    Child(PageId),
    /// A leaf whose last row has this revision.
    Row(Revision),
    /// A leaf without rows.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Trace {
    page: PageId,
    end: End,
}

/// A few bytes that are yet to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ask {
    offset: u64,
    page: PageId,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The last element of a branch.
    BranchElement,
    /// The last element of a leaf that ends at this byte of the file.
    LeafElement { end: u64 },
    /// The last key of a leaf.
    Key { len: usize },
}

impl What {
    fn len(self) -> usize {
        match self {
            Self::BranchElement | Self::LeafElement { .. } => HEADER,
            Self::Key { len } => len,
        }
    }
}

/// What is kept of a database that streams by.
#[derive(Debug)]
pub struct Outline {
    first: Vec<u8>,
    meta: Option<Meta>,
    length: u64,
    /// The last bytes of the pieces so far, and where the first of them lies.
    window: Vec<u8>,
    window_start: u64,
    next_page: u64,
    asks: BinaryHeap<Reverse<Ask>>,
    traces: Vec<Vec<Trace>>,
    whole: BTreeMap<PageId, Vec<u8>>,
    not_kept: Cell<Option<PageId>>,
}

impl Outline {
    /// An outline that keeps the given pages whole, besides the root.
    pub fn new(keep: &BTreeSet<PageId>) -> Self {
        Self {
            first: Vec::new(),
            meta: None,
            length: 0,
            window: Vec::new(),
            window_start: 0,
            next_page: 0,
            asks: BinaryHeap::new(),
            traces: Vec::new(),
            whole: keep.iter().map(|page| (*page, Vec::new())).collect(),
            not_kept: Cell::new(None),
        }
    }

    /// Takes the next bytes of the file.
    ///
    /// # Errors
    /// Both meta pages are damaged: nothing behind them can be found.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), BboltError> {
        self.length += piece.len() as u64;
        if self.meta.is_some() {
            self.look_through(piece);
            return Ok(());
        }
        let wanted = FIRST_BYTES.saturating_sub(self.first.len());
        let (head, rest) = piece.split_at(wanted.min(piece.len()));
        self.first.extend_from_slice(head);
        if self.first.len() == FIRST_BYTES {
            self.begin()?;
            self.look_through(rest);
        }
        Ok(())
    }

    /// The whole file was pushed: where does its database stand?
    ///
    /// # Errors
    /// [`OutlineError`]; what a reader of the file itself would find, or a page to ask for.
    pub fn facts(&mut self) -> Result<Facts, OutlineError> {
        if self.meta.is_none() {
            self.begin().map_err(FactsError::from)?;
        }
        self.not_kept.set(None);
        let facts = Database::open(&*self)
            .map_err(FactsError::from)
            .and_then(|database| Facts::read(&database));
        match (facts, self.not_kept.get()) {
            (Err(_), Some(page)) => Err(OutlineError::NotKept { page }),
            (facts, _) => Ok(facts?),
        }
    }

    /// The metas are there: everything after them can be told apart.
    fn begin(&mut self) -> Result<(), BboltError> {
        let meta = Meta::in_first_bytes(&self.first)?;
        self.whole.entry(meta.root).or_default();
        self.meta = Some(meta);
        let first = std::mem::take(&mut self.first);
        self.look_through(&first);
        self.first = first;
        Ok(())
    }

    fn look_through(&mut self, piece: &[u8]) {
        let Some(meta) = self.meta else { return };
        self.window.extend_from_slice(piece);
        let window = std::mem::take(&mut self.window);
        let view = View {
            bytes: &window,
            start: self.window_start,
        };
        while let Some(Reverse(ask)) = self.asks.peek().copied() {
            if !self.serve(ask, &view) {
                break;
            }
            self.asks.pop();
        }
        let page_size = u64::from(meta.page_size);
        while self.next_page < meta.high_water.0
            && let Some(header) = view.get(self.next_page.saturating_mul(page_size), HEADER)
        {
            self.page(PageId(self.next_page), header, page_size, &view);
            self.next_page += 1;
        }
        self.keep_whole(page_size, &view);
        self.window = window;
        // Whatever could not be answered begins in the last bytes.
        let spent = self.window.len().saturating_sub(LONGEST_ASK);
        self.window.drain(..spent);
        self.window_start += spent as u64;
    }

    fn page(&mut self, page: PageId, header: &[u8], page_size: u64, view: &View<'_>) {
        let (Some(id), Some(flags), Some(count), Some(overflow)) = (
            u64_at(header, 0),
            u16_at(header, 8),
            u16_at(header, 10),
            u32_at(header, 12),
        ) else {
            return;
        };
        if id != page.0 || (flags != BRANCH && flags != LEAF) {
            return;
        }
        let start = page.0.saturating_mul(page_size);
        let end = start.saturating_add((u64::from(overflow) + 1).saturating_mul(page_size));
        let what = match (flags, count) {
            (LEAF, 0) => return self.leave(page, End::Nothing),
            (_, 0) => return,
            (LEAF, _) => What::LeafElement { end },
            _ => What::BranchElement,
        };
        let offset = start + u64::from(count) * HEADER as u64;
        if offset + HEADER as u64 <= end {
            self.ask(Ask { offset, page, what }, view);
        }
    }

    fn ask(&mut self, ask: Ask, view: &View<'_>) {
        if !self.serve(ask, view) {
            self.asks.push(Reverse(ask));
        }
    }

    /// `false` when the bytes are not there yet.
    fn serve(&mut self, ask: Ask, view: &View<'_>) -> bool {
        let Some(bytes) = view.get(ask.offset, ask.what.len()) else {
            return false;
        };
        match ask.what {
            What::BranchElement => {
                if let Some(child) = u64_at(bytes, 8) {
                    self.leave(ask.page, End::Child(PageId(child)));
                }
            }
            What::LeafElement { end } => {
                if let Some(key) = last_key(ask, bytes, end) {
                    self.ask(key, view);
                }
            }
            What::Key { .. } => {
                if let Ok(row) = RevisionKey::decode(bytes) {
                    self.leave(ask.page, End::Row(row.main));
                }
            }
        }
        true
    }

    fn leave(&mut self, page: PageId, end: End) {
        let trace = Trace { page, end };
        if let Some(block) = self.traces.last_mut().filter(|block| block.len() < BLOCK) {
            block.push(trace);
            return;
        }
        let mut block = Vec::with_capacity(BLOCK);
        block.push(trace);
        self.traces.push(block);
    }

    /// Appends what the window has of the pages that are kept whole.
    fn keep_whole(&mut self, page_size: u64, view: &View<'_>) {
        for (page, kept) in &mut self.whole {
            let start = page.0.saturating_mul(page_size);
            // Once for the page, and once more when its header has told of overflow pages.
            for _ in 0..2 {
                let pages = u64::from(u32_at(kept, 12).unwrap_or(0)) + 1;
                let wanted = pages.saturating_mul(page_size).min(WHOLE_LIMIT);
                let from = start.saturating_add(kept.len() as u64);
                kept.extend_from_slice(view.part(from, start.saturating_add(wanted)));
            }
        }
    }

    fn end_of(&self, page: PageId) -> Option<End> {
        let mut traces = self.traces.iter().flatten();
        traces
            .find(|trace| trace.page == page)
            .map(|trace| trace.end)
    }
}

/// Where the last key of a leaf lies, if it can be a revision.
fn last_key(element: Ask, bytes: &[u8], end: u64) -> Option<Ask> {
    let (flags, position) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?);
    let len = usize::try_from(u32_at(bytes, 8)?).ok()?;
    let offset = element.offset.checked_add(u64::from(position))?;
    let is_revision = flags & BUCKET == 0 && (len == LONGEST_ASK - 1 || len == LONGEST_ASK);
    let is_behind = position >= BEHIND_ELEMENT;
    let is_inside = offset.checked_add(len as u64)? <= end;
    (is_revision && is_behind && is_inside).then_some(Ask {
        offset,
        page: element.page,
        what: What::Key { len },
    })
}

/// The engine reads metas in a few bytes, and pages whole.
impl ReadAt for Outline {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if buffer.len() < MIN_PAGE_SIZE as usize {
            return self.first.read_exact_at(buffer, offset);
        }
        let page_size = self.meta.map_or(1, |meta| u64::from(meta.page_size));
        let kept = self.whole.range(..=PageId(offset / page_size)).next_back();
        if let Some((page, bytes)) = kept
            && let Some(at) = offset.checked_sub(page.0.saturating_mul(page_size))
            && at < (bytes.len() as u64).max(page_size)
        {
            return bytes.read_exact_at(buffer, at);
        }
        let page = PageId(offset / page_size);
        if let Some(end) = self.end_of(page) {
            return last_element_only(page, end, buffer);
        }
        self.not_kept.set(Some(page));
        Err(io::ErrorKind::NotFound.into())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.length)
    }
}

/// Fills `buffer` with a page that has the last element of the real one, and no value.
fn last_element_only(page: PageId, end: End, buffer: &mut [u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(2 * HEADER + LONGEST_ASK);
    let (flags, count) = match end {
        End::Child(_) => (BRANCH, 1u16),
        End::Row(_) => (LEAF, 1),
        End::Nothing => (LEAF, 0),
    };
    bytes.extend_from_slice(&page.0.to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&0u32.to_le_bytes());
    let behind_element = BEHIND_ELEMENT.to_le_bytes();
    match end {
        End::Child(child) => {
            bytes.extend_from_slice(&behind_element);
            bytes.extend_from_slice(&0u32.to_le_bytes()); // nobody compares keys on the way down
            bytes.extend_from_slice(&child.0.to_le_bytes());
        }
        End::Row(revision) => RevisionKey::first_of(revision).with_encoded(|key| {
            bytes.extend_from_slice(&0u32.to_le_bytes());
            bytes.extend_from_slice(&behind_element);
            bytes.extend_from_slice(&ROW_KEY.to_le_bytes());
            bytes.extend_from_slice(&0u32.to_le_bytes());
            bytes.extend_from_slice(key);
        }),
        End::Nothing => {}
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
