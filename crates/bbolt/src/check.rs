//! Full structural check: reads every page reachable from the root once.
//!
//! It covers bbolt's own check and adds: a branch carries the first key of each child, branches have at least two
//! children, all leaves have one depth, inline buckets are valid, and no pointer leaves its page or the file.
//! A visitor receives every item, so that its meaning can be checked in the same read.

use mainstay_ids::PageId;

use crate::bucket::{BucketRoot, decode_inline_page};
use crate::bytes::{to_index, u16_at, u64_at};
use crate::cursor::MAX_DEPTH;
use crate::database::Database;
use crate::disk::ReadAt;
use crate::error::BboltError;
use crate::page::{HEADER_LEN, LeafItem, PageKind, PageRef};

/// Contents of a valid file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckSummary {
    /// Number of pages reachable from the root, metas included.
    pub pages_used: u64,
    /// Number of pages below the high-water mark.
    pub pages_total: u64,
    /// One entry per bucket, in name order.
    pub buckets: Vec<CheckedBucket>,
}

/// One bucket of a valid file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedBucket {
    /// Bucket name, not necessarily UTF-8.
    pub name: Vec<u8>,
    /// Number of items.
    pub items: u64,
    /// Total length of keys and values in bytes.
    pub bytes: u64,
}

/// Checks the whole file and passes each item to `visit` with the name of its bucket.
///
/// # Errors
/// The first defect found, or the first error of the visitor.
pub fn check<S, E>(
    database: &Database<S>,
    visit: impl FnMut(&[u8], LeafItem<'_>) -> Result<(), E>,
) -> Result<CheckSummary, E>
where
    S: ReadAt,
    E: From<BboltError>,
{
    let pages = database.meta().high_water.0;
    let mut walk = TreeChecker {
        database,
        used: PageBitmap::new(pages)?,
        spare: Vec::new(),
        previous: Vec::new(),
        has_previous: false,
        leaf_depth: None,
        visit,
    };
    walk.used.mark(PageId(0), 1)?;
    walk.used.mark(PageId(1), 1)?;
    let roots = walk.check_root_bucket()?;
    let mut buckets = Vec::with_capacity(roots.len());
    for (name, root) in roots {
        let (items, bytes) = walk.check_bucket(&name, &root)?;
        buckets.push(CheckedBucket { name, items, bytes });
    }
    let pages_used = walk.used.count();
    if let Some(freelist) = database.meta().freelist {
        check_freelist(database, freelist, &mut walk.used)?;
    }
    Ok(CheckSummary {
        pages_used,
        pages_total: pages,
        buckets,
    })
}

struct TreeChecker<'d, S, V> {
    database: &'d Database<S>,
    used: PageBitmap,
    spare: Vec<Vec<u8>>,
    previous: Vec<u8>,
    has_previous: bool,
    leaf_depth: Option<usize>,
    visit: V,
}

/// Depth and bucket of a page.
struct TreePosition<'n> {
    bucket: Option<&'n [u8]>,
    depth: usize,
}

impl<S, V, E> TreeChecker<'_, S, V>
where
    S: ReadAt,
    V: FnMut(&[u8], LeafItem<'_>) -> Result<(), E>,
    E: From<BboltError>,
{
    fn check_root_bucket(&mut self) -> Result<Vec<(Vec<u8>, BucketRoot)>, E> {
        self.start_tree();
        let root = self.database.meta().root;
        self.check_page(
            root,
            None,
            &TreePosition {
                bucket: None,
                depth: 0,
            },
            &mut (0, 0),
        )?;
        Ok(self.database.buckets()?)
    }

    fn check_bucket(&mut self, name: &[u8], root: &BucketRoot) -> Result<(u64, u64), E> {
        self.start_tree();
        let mut totals = (0, 0);
        match root {
            BucketRoot::Page(page) => {
                self.check_page(
                    *page,
                    None,
                    &TreePosition {
                        bucket: Some(name),
                        depth: 0,
                    },
                    &mut totals,
                )?;
            }
            BucketRoot::Inline(image) => {
                let page = decode_inline_page(image)?;
                if page.kind() != PageKind::Leaf {
                    return Err(BboltError::WrongKind {
                        page: page.id(),
                        flags: 0x01,
                    }
                    .into());
                }
                self.check_leaf(&page, Some(name), &mut totals)?;
            }
        }
        Ok(totals)
    }

    fn start_tree(&mut self) {
        self.has_previous = false;
        self.leaf_depth = None;
    }

    /// Checks the page and all pages below. [`MAX_DEPTH`] bounds the recursion.
    fn check_page(
        &mut self,
        id: PageId,
        separator: Option<(&[u8], PageId, usize)>,
        place: &TreePosition<'_>,
        totals: &mut (u64, u64),
    ) -> Result<(), E> {
        if place.depth >= MAX_DEPTH {
            return Err(BboltError::TooDeep {
                page: id,
                limit: MAX_DEPTH,
            }
            .into());
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        let page = self.database.read_page(id, &mut buffer)?;
        self.used.mark(id, u64::from(page.overflow()) + 1)?;
        if let Some((key, parent, element)) = separator
            && (page.count() == 0 || page.key(0)? != key)
        {
            return Err(BboltError::SeparatorMismatch {
                page: parent,
                element,
                child: id,
            }
            .into());
        }
        if page.kind() == PageKind::Branch {
            self.check_branch(&page, place, totals)?;
        } else {
            let expected = *self.leaf_depth.get_or_insert(place.depth);
            if expected != place.depth {
                return Err(BboltError::UnevenDepth {
                    page: id,
                    depth: place.depth,
                    expected,
                }
                .into());
            }
            self.check_leaf(&page, place.bucket, totals)?;
        }
        self.spare.push(buffer);
        Ok(())
    }

    fn check_branch(
        &mut self,
        page: &PageRef<'_>,
        place: &TreePosition<'_>,
        totals: &mut (u64, u64),
    ) -> Result<(), E> {
        // etcd panics on such a branch at the next rebalance.
        if page.count() < 2 {
            return Err(BboltError::TooFewChildren {
                page: page.id(),
                children: page.count(),
            }
            .into());
        }
        let below = TreePosition {
            bucket: place.bucket,
            depth: place.depth + 1,
        };
        for element in 0..page.count() {
            let (key, child) = page.child(element)?;
            self.check_page(child, Some((key, page.id(), element)), &below, totals)?;
        }
        Ok(())
    }

    fn check_leaf(
        &mut self,
        page: &PageRef<'_>,
        bucket: Option<&[u8]>,
        totals: &mut (u64, u64),
    ) -> Result<(), E> {
        for element in 0..page.count() {
            let item = page.item(element)?;
            let follows = !self.has_previous || item.key > self.previous.as_slice();
            if !follows || item.key.is_empty() {
                return Err(BboltError::KeyOrder {
                    page: page.id(),
                    element,
                }
                .into());
            }
            self.previous.clear();
            self.previous.extend_from_slice(item.key);
            self.has_previous = true;
            match bucket {
                None if !item.is_bucket => {
                    let name = String::from_utf8_lossy(item.key).into_owned();
                    return Err(BboltError::InvalidBucketHeader { name }.into());
                }
                Some(_) if item.is_bucket => {
                    return Err(BboltError::NestedBucket {
                        page: page.id(),
                        element,
                    }
                    .into());
                }
                None => {}
                Some(name) => (self.visit)(name, item)?,
            }
            totals.0 += 1;
            totals.1 += (item.key.len() + item.value.len()) as u64;
        }
        Ok(())
    }
}

/// Checks the stored freelist: ids in range, no page twice, none in use.
fn check_freelist<S: ReadAt>(
    database: &Database<S>,
    page: PageId,
    used: &mut PageBitmap,
) -> Result<(), BboltError> {
    const FREELIST: u16 = 0x10;
    let page_size = u64::from(database.meta().page_size);
    let pages = database.meta().high_water.0;
    if page.0 < 2 || page.0 >= pages {
        return Err(BboltError::OutOfRange { page, pages });
    }
    let offset = page.0 * page_size;
    let mut head = [0u8; HEADER_LEN + 8];
    read(database.source(), &mut head, offset)?;
    let flags = u16_at(&head, 8).unwrap_or_default();
    if u64_at(&head, 0) != Some(page.0) || flags != FREELIST {
        return Err(BboltError::WrongKind { page, flags });
    }
    let overflow = u64::from(crate::bytes::u32_at(&head, 12).unwrap_or_default());
    used.mark(page, overflow + 1)?;
    // bbolt stores the count in the first id when it exceeds 16 bits.
    let (skip, count) = match u16_at(&head, 10).unwrap_or_default() {
        u16::MAX => (8, u64_at(&head, HEADER_LEN).unwrap_or_default()),
        count => (0, u64::from(count)),
    };
    let room = (overflow + 1) * page_size - HEADER_LEN as u64 - skip;
    // The count is untrusted: ids beyond the page would belong to another page.
    if count > room / 8 {
        return Err(BboltError::ElementOutOfBounds {
            page,
            element: to_index(u32::MAX),
        });
    }
    let mut buffer = vec![0u8; 64 << 10];
    let (mut at, end) = (
        offset + HEADER_LEN as u64 + skip,
        offset + HEADER_LEN as u64 + skip + count * 8,
    );
    while at < end {
        let len = usize::try_from(end - at)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let piece = buffer.get_mut(..len).unwrap_or_default();
        read(database.source(), piece, at)?;
        for id in piece.chunks_exact(8) {
            used.mark(PageId(u64_at(id, 0).unwrap_or_default()), 1)?;
        }
        at += len as u64;
    }
    Ok(())
}

fn read<S: ReadAt>(source: &S, buffer: &mut [u8], offset: u64) -> Result<(), BboltError> {
    let len = buffer.len();
    source
        .read_exact_at(buffer, offset)
        .map_err(|source| BboltError::Read {
            offset,
            len,
            source,
        })
}

/// One bit per page of the file.
struct PageBitmap {
    words: Vec<u64>,
    pages: u64,
}

impl PageBitmap {
    fn new(pages: u64) -> Result<Self, BboltError> {
        // `Database::open` compared the mark with the file length, so the allocation is bounded by the file.
        let words = usize::try_from(pages.div_ceil(64)).map_err(|_| BboltError::FileTooLarge)?;
        Ok(Self {
            words: vec![0; words],
            pages,
        })
    }

    fn mark(&mut self, first: PageId, count: u64) -> Result<(), BboltError> {
        for page in first.0..first.0.saturating_add(count) {
            let word = usize::try_from(page / 64)
                .ok()
                .and_then(|at| self.words.get_mut(at));
            let (Some(word), true) = (word, page < self.pages) else {
                return Err(BboltError::OutOfRange {
                    page: PageId(page),
                    pages: self.pages,
                });
            };
            let bit = 1u64 << (page % 64);
            if *word & bit != 0 {
                return Err(BboltError::SharedPage { page: PageId(page) });
            }
            *word |= bit;
        }
        Ok(())
    }

    fn count(&self) -> u64 {
        self.words
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    }
}
