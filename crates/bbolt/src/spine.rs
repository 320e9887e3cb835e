//! The right edge of a tree up to some key: the part that an append or a truncation rewrites.
//!
//! etcd's revision keys only grow, so new rows go after the last one. Everything left of the spine is shared with
//! the old tree, unchanged.

use mainstay_ids::PageId;

use crate::bucket::{BucketRoot, decode_inline_page};
use crate::cursor::MAX_DEPTH;
use crate::database::Database;
use crate::disk::ReadAt;
use crate::error::BboltError;
use crate::page::{PageKind, PageRef};
use crate::tree::{OwnedItem, PagePointer};

/// The last leaf of the kept part.
#[derive(Debug)]
pub(crate) enum LastLeaf {
    /// Nothing of the bucket is kept.
    None,
    /// The leaf is kept unchanged.
    InPlace(PagePointer),
    /// The leaf is inline or loses items: these items are written again.
    Items(Vec<OwnedItem>),
}

/// The right edge of a bucket's tree.
#[derive(Debug)]
pub(crate) struct Spine {
    /// Kept siblings left of the edge; index 0 holds pointers to leaves.
    pub(crate) levels: Vec<Vec<PagePointer>>,
    pub(crate) leaf: LastLeaf,
}

impl Spine {
    /// Finds the edge at the end of the bucket, or after the last key `<= bound`.
    pub(crate) fn find<S: ReadAt>(
        database: &Database<S>,
        root: &BucketRoot,
        bound: Option<&[u8]>,
    ) -> Result<Self, BboltError> {
        let mut levels = Vec::new();
        let mut buffer = Vec::new();
        let mut page_id = match root {
            BucketRoot::Inline(image) => {
                let leaf = items_up_to(&decode_inline_page(image)?, bound)?;
                return Ok(Self { levels, leaf });
            }
            BucketRoot::Page(page) => *page,
        };
        loop {
            if levels.len() >= MAX_DEPTH {
                return Err(BboltError::TooDeep {
                    page: page_id,
                    limit: MAX_DEPTH,
                });
            }
            let page = database.read_page(page_id, &mut buffer)?;
            if page.kind() == PageKind::Leaf {
                let leaf = find_last_leaf(&page, bound)?;
                levels.reverse();
                let mut spine = Self { levels, leaf };
                if matches!(spine.leaf, LastLeaf::None) {
                    // Either the bound is before every key of the bucket, or a branch key is wrong.
                    if spine.levels.iter().any(|level| !level.is_empty()) {
                        return Err(BboltError::EmptyLeaf { page: page_id });
                    }
                    spine.levels.clear();
                }
                spine.fill_empty_levels(database)?;
                return Ok(spine);
            }
            let (siblings, child) = split_branch(&page, bound)?;
            levels.push(siblings);
            page_id = child;
        }
    }

    /// Fills empty levels below used ones, so that every branch written later has at least two children: replaces the
    /// branch to the left by its children.
    fn fill_empty_levels<S: ReadAt>(&mut self, database: &Database<S>) -> Result<(), BboltError> {
        let mut buffer = Vec::new();
        for height in 0..self.levels.len() {
            let is_empty = self.levels.get(height).is_some_and(Vec::is_empty);
            let donor = (height + 1..self.levels.len()).find(|above| {
                self.levels
                    .get(*above)
                    .is_some_and(|level| !level.is_empty())
            });
            let (true, Some(donor)) = (is_empty, donor) else {
                continue;
            };
            for above in (height + 1..=donor).rev() {
                let Some((_, branch)) = self.levels.get_mut(above).and_then(Vec::pop) else {
                    continue;
                };
                let page = database.read_page(branch, &mut buffer)?;
                let children = branch_pointers(&page, page.count())?;
                if let Some(level) = self.levels.get_mut(above - 1) {
                    *level = children;
                }
            }
        }
        Ok(())
    }
}

/// Returns the children before the one that leads to `bound`, and that one.
fn split_branch(
    page: &PageRef<'_>,
    bound: Option<&[u8]>,
) -> Result<(Vec<PagePointer>, PageId), BboltError> {
    if page.count() < 2 {
        return Err(BboltError::TooFewChildren {
            page: page.id(),
            children: page.count(),
        });
    }
    let element = match bound {
        Some(bound) => page.count_up_to(bound)?.saturating_sub(1),
        None => page.count() - 1,
    };
    let (_, child) = page.child(element)?;
    Ok((branch_pointers(page, element)?, child))
}

fn branch_pointers(page: &PageRef<'_>, count: usize) -> Result<Vec<PagePointer>, BboltError> {
    if page.kind() != PageKind::Branch {
        return Err(BboltError::WrongKind {
            page: page.id(),
            flags: 0x02,
        });
    }
    (0..count)
        .map(|element| {
            page.child(element)
                .map(|(key, child)| (key.to_vec(), child))
        })
        .collect()
}

fn find_last_leaf(page: &PageRef<'_>, bound: Option<&[u8]>) -> Result<LastLeaf, BboltError> {
    let kept = match bound {
        Some(bound) => page.count_up_to(bound)?,
        None => page.count(),
    };
    if kept == 0 {
        return Ok(LastLeaf::None);
    }
    if kept == page.count() {
        return Ok(LastLeaf::InPlace((page.item(0)?.key.to_vec(), page.id())));
    }
    items_up_to(page, bound)
}

fn items_up_to(page: &PageRef<'_>, bound: Option<&[u8]>) -> Result<LastLeaf, BboltError> {
    let kept = match bound {
        Some(bound) => page.count_up_to(bound)?,
        None => page.count(),
    };
    if kept == 0 {
        return Ok(LastLeaf::None);
    }
    let mut items = Vec::with_capacity(kept);
    for element in 0..kept {
        let item = page.item(element)?;
        if item.is_bucket {
            return Err(BboltError::NestedBucket {
                page: page.id(),
                element,
            });
        }
        items.push((item.key.to_vec(), item.value.to_vec()));
    }
    Ok(LastLeaf::Items(items))
}
