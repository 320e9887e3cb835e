//! Iterates over the items of one bucket in either direction and validates every page it reads.

use std::cmp::Ordering;

use mainstay_ids::PageId;

use crate::bucket::{BucketRoot, decode_inline_page};
use crate::database::Database;
use crate::disk::ReadAt;
use crate::error::BboltError;
use crate::page::{LeafItem, PageHeader, PageKind, PageRef};

/// Deepest tree accepted. With two children per branch, a file of 2^48 bytes needs fewer levels.
pub(crate) const MAX_DEPTH: usize = 48;

/// Direction of a [`Cursor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Backward,
}

/// One page on the path from the root to the current item.
#[derive(Debug)]
struct CursorFrame {
    header: PageHeader,
    buffer: Vec<u8>,
    remaining: usize,
}

impl CursorFrame {
    fn page(&self) -> PageRef<'_> {
        PageRef::new(self.header, &self.buffer)
    }

    /// Index of the next element; only valid while `remaining > 0`.
    fn next_element(&self, direction: Direction) -> usize {
        match direction {
            Direction::Forward => self.header.count - self.remaining,
            Direction::Backward => self.remaining - 1,
        }
    }
}

/// Iterates over the items of a bucket. Memory: one page per level of the tree.
///
/// Keys must be strictly ordered, and a cursor visits no more pages than the file has. So a corrupt tree ends in an
/// error, never in a loop.
#[derive(Debug)]
pub struct Cursor<'d, S> {
    database: &'d Database<S>,
    direction: Direction,
    path: Vec<CursorFrame>,
    spare: Vec<Vec<u8>>,
    previous: Vec<u8>,
    has_previous: bool,
    visited: u64,
}

impl<'d, S: ReadAt> Cursor<'d, S> {
    /// Creates a cursor before the first item of the bucket (after the last, when going backward).
    pub fn new(
        database: &'d Database<S>,
        root: &BucketRoot,
        direction: Direction,
    ) -> Result<Self, BboltError> {
        let mut cursor = Self {
            database,
            direction,
            path: Vec::new(),
            spare: Vec::new(),
            previous: Vec::new(),
            has_previous: false,
            visited: 0,
        };
        match root {
            BucketRoot::Page(page) => cursor.descend(*page)?,
            BucketRoot::Inline(image) => {
                let header = decode_inline_page(image).map(|page| (page.kind(), page.count()))?;
                cursor.path.push(CursorFrame {
                    header: PageHeader {
                        page: PageId(0),
                        kind: header.0,
                        count: header.1,
                        overflow: 0,
                    },
                    buffer: image.clone(),
                    remaining: header.1,
                });
            }
        }
        Ok(cursor)
    }

    /// Moves a new cursor so that it returns the first item `>= bound` next; a backward cursor, the last item `<= bound`.
    pub fn seek(&mut self, bound: &[u8]) -> Result<(), BboltError> {
        while let Some(frame) = self.path.last_mut() {
            let page = frame.page();
            let up_to = page.count_up_to(bound)?;
            if page.kind() == PageKind::Leaf {
                let exact = up_to > 0 && page.item(up_to - 1)?.key == bound;
                frame.remaining = match self.direction {
                    Direction::Forward => frame.header.count - (up_to - usize::from(exact)),
                    Direction::Backward => up_to,
                };
                return Ok(());
            }
            let element = up_to.saturating_sub(1);
            let (_, child) = page.child(element)?;
            frame.remaining = match self.direction {
                Direction::Forward => frame.header.count.saturating_sub(element + 1),
                Direction::Backward => element,
            };
            self.descend(child)?;
        }
        Ok(())
    }

    /// Returns the next item, or `None` at the end of the bucket.
    #[expect(
        clippy::should_implement_trait,
        reason = "items borrow from the cursor"
    )]
    pub fn next(&mut self) -> Result<Option<LeafItem<'_>>, BboltError> {
        let Some(element) = self.advance()? else {
            return Ok(None);
        };
        let Some(frame) = self.path.last() else {
            return Ok(None);
        };
        let item = frame.page().item(element)?;
        let expected = match self.direction {
            Direction::Forward => Ordering::Greater,
            Direction::Backward => Ordering::Less,
        };
        if self.has_previous && item.key.cmp(self.previous.as_slice()) != expected {
            return Err(BboltError::KeyOrder {
                page: frame.header.page,
                element,
            });
        }
        self.previous.clear();
        self.previous.extend_from_slice(item.key);
        self.has_previous = true;
        Ok(Some(item))
    }

    /// Moves to the next leaf element and returns its index; the leaf is the top of the path.
    fn advance(&mut self) -> Result<Option<usize>, BboltError> {
        loop {
            let Some(frame) = self.path.last_mut() else {
                return Ok(None);
            };
            if frame.remaining == 0 {
                if let Some(done) = self.path.pop() {
                    self.spare.push(done.buffer);
                }
                continue;
            }
            let element = frame.next_element(self.direction);
            frame.remaining -= 1;
            match frame.header.kind {
                PageKind::Branch => {
                    let (_, child) = frame.page().child(element)?;
                    self.descend(child)?;
                }
                _ => return Ok(Some(element)),
            }
        }
    }

    fn descend(&mut self, page: PageId) -> Result<(), BboltError> {
        if self.path.len() >= MAX_DEPTH {
            return Err(BboltError::TooDeep {
                page,
                limit: MAX_DEPTH,
            });
        }
        self.visited += 1;
        // A corrupt branch can point back to an ancestor.
        if self.visited > self.database.meta().high_water.0 {
            return Err(BboltError::PageLoop { page });
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        let header = self.database.load_page(page, &mut buffer)?;
        self.path.push(CursorFrame {
            header,
            buffer,
            remaining: header.count,
        });
        Ok(())
    }
}
