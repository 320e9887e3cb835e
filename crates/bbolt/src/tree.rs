//! Builds the tree of one bucket from ascending items, with one open page per level.
//!
//! It ensures two rules that bbolt's check does not cover and that make etcd panic later: a branch key equals the
//! first key of its child, and a branch has at least two children.

use mainstay_ids::PageId;

use crate::bucket::BucketRoot;
use crate::bytes::to_index;
use crate::disk::Disk;
use crate::error::BboltError;
use crate::page::{
    BUCKET_FLAG, ELEMENT_LEN, HEADER_LEN, LeafItem, MAX_ELEMENTS, MAX_KEY_LEN, MAX_VALUE_LEN,
    PageKind, encode_header,
};

/// Bytes written to the disk at once.
const WRITE_CHUNK_LEN: usize = 1 << 20;

/// Appends pages to a disk, never seeking back.
#[derive(Debug)]
pub(crate) struct PageWriter<D> {
    pub(crate) disk: D,
    pub(crate) page_size: u32,
    next_page: PageId,
    pending: Vec<u8>,
    pending_at: u64,
}

impl<D: Disk> PageWriter<D> {
    pub(crate) fn new(disk: D, page_size: u32, next_page: PageId) -> Result<Self, BboltError> {
        let pending_at = next_page
            .0
            .checked_mul(u64::from(page_size))
            .ok_or(BboltError::FileTooLarge)?;
        let pending = Vec::with_capacity(WRITE_CHUNK_LEN + to_index(page_size));
        Ok(Self {
            disk,
            page_size,
            next_page,
            pending,
            pending_at,
        })
    }

    /// Next free page.
    pub(crate) fn next_page(&self) -> PageId {
        self.next_page
    }

    /// Appends one logical page of `size` bytes; `fill` writes its content after the header.
    fn append(
        &mut self,
        kind: PageKind,
        count: usize,
        size: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<PageId, BboltError> {
        let page = self.next_page;
        let page_size = to_index(self.page_size);
        let pages = size.div_ceil(page_size).max(1);
        let overflow = u32::try_from(pages - 1).map_err(|_| BboltError::FileTooLarge)?;
        let count = u16::try_from(count).map_err(|_| BboltError::FileTooLarge)?;
        let start = self.pending.len();
        self.pending
            .extend_from_slice(&encode_header(page, kind, count, overflow));
        fill(&mut self.pending);
        self.pending.resize(start + pages * page_size, 0);
        self.next_page = PageId(
            page.0
                .checked_add(pages as u64)
                .ok_or(BboltError::FileTooLarge)?,
        );
        if self.pending.len() >= WRITE_CHUNK_LEN {
            self.flush()?;
        }
        Ok(page)
    }

    /// Writes everything appended so far to the disk.
    pub(crate) fn flush(&mut self) -> Result<(), BboltError> {
        let len = self.pending.len();
        let offset = self.pending_at;
        self.disk
            .write_all_at(&self.pending, offset)
            .map_err(|source| BboltError::Write {
                offset,
                len,
                source,
            })?;
        self.pending_at += len as u64;
        self.pending.clear();
        Ok(())
    }
}

/// A leaf that accepts more items.
#[derive(Debug, Default)]
pub(crate) struct OpenLeaf {
    elements: Vec<LeafElement>,
    data: Vec<u8>,
    first_key_len: usize,
}

#[derive(Clone, Copy, Debug)]
struct LeafElement {
    flags: u32,
    key_len: u32,
    value_len: u32,
}

impl OpenLeaf {
    pub(crate) fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    fn size(&self) -> usize {
        HEADER_LEN + self.elements.len() * ELEMENT_LEN + self.data.len()
    }

    /// Returns true when an item of `payload` bytes must go to the next leaf.
    pub(crate) fn is_full_for(&self, payload: usize, limit: usize) -> bool {
        !self.is_empty()
            && (self.size() + ELEMENT_LEN + payload > limit || self.elements.len() >= MAX_ELEMENTS)
    }

    pub(crate) fn first_key(&self) -> &[u8] {
        self.data.get(..self.first_key_len).unwrap_or_default()
    }

    pub(crate) fn push(&mut self, item: LeafItem<'_>) -> Result<(), BboltError> {
        let LeafItem {
            key,
            value,
            is_bucket,
        } = item;
        let unstorable = || BboltError::UnstorableItem {
            key_len: key.len(),
            value_len: value.len(),
        };
        if key.is_empty() || key.len() > MAX_KEY_LEN || value.len() > MAX_VALUE_LEN {
            return Err(unstorable());
        }
        if self.is_empty() {
            self.first_key_len = key.len();
        }
        self.elements.push(LeafElement {
            flags: if is_bucket { BUCKET_FLAG } else { 0 },
            key_len: u32::try_from(key.len()).map_err(|_| unstorable())?,
            value_len: u32::try_from(value.len()).map_err(|_| unstorable())?,
        });
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
        Ok(())
    }

    /// Element array and data, as they follow the page header.
    fn encode_body(&self, out: &mut Vec<u8>) {
        let mut position = self.elements.len() * ELEMENT_LEN;
        for element in &self.elements {
            out.extend_from_slice(&element.flags.to_le_bytes());
            out.extend_from_slice(&to_u32(position).to_le_bytes());
            out.extend_from_slice(&element.key_len.to_le_bytes());
            out.extend_from_slice(&element.value_len.to_le_bytes());
            position += to_index(element.key_len) + to_index(element.value_len);
            position -= ELEMENT_LEN;
        }
        out.extend_from_slice(&self.data);
    }

    /// Writes the leaf as a page and empties it.
    pub(crate) fn write<D: Disk>(&mut self, out: &mut PageWriter<D>) -> Result<PageId, BboltError> {
        if u32::try_from(self.size()).is_err() {
            return Err(BboltError::FileTooLarge); // positions inside a page have 32 bits
        }
        let page = out.append(PageKind::Leaf, self.elements.len(), self.size(), |b| {
            self.encode_body(b);
        })?;
        self.elements.clear();
        self.data.clear();
        Ok(page)
    }

    fn encode_inline(&self) -> Vec<u8> {
        let count = u16::try_from(self.elements.len()).unwrap_or(u16::MAX);
        let mut image = encode_header(PageId(0), PageKind::Leaf, count, 0).to_vec();
        self.encode_body(&mut image);
        image
    }
}

/// Converts a position inside a page; `OpenLeaf::write` and the branch size keep it within 32 bits.
fn to_u32(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// First key and id of a written page.
pub type PagePointer = (Vec<u8>, PageId);

/// A key and its value.
pub type OwnedItem = (Vec<u8>, Vec<u8>);

/// Pointers of one height that are not written yet.
#[derive(Debug, Default)]
struct TreeLevel {
    pointers: Vec<PagePointer>,
    /// Number of leading pointers that fit into the next branch, and the size of that branch in bytes.
    fitting: usize,
    fitting_size: usize,
}

impl TreeLevel {
    fn push(&mut self, pointer: PagePointer, page_size: usize) {
        let size = self.fitting_size.max(HEADER_LEN) + ELEMENT_LEN + pointer.0.len();
        let all_fit_so_far = self.fitting == self.pointers.len();
        if all_fit_so_far && (self.fitting < 2 || size <= page_size) && self.fitting < MAX_ELEMENTS
        {
            self.fitting += 1;
            self.fitting_size = size;
        }
        self.pointers.push(pointer);
    }
}

/// Builds one bucket.
#[derive(Debug)]
pub(crate) struct TreeBuilder {
    page_size: usize,
    leaf_limit: usize,
    leaf: OpenLeaf,
    levels: Vec<TreeLevel>,
    can_inline: bool,
}

impl TreeBuilder {
    pub(crate) fn new(page_size: u32) -> Self {
        let page_size = to_index(page_size);
        Self {
            page_size,
            leaf_limit: page_size,
            leaf: OpenLeaf::default(),
            levels: Vec::new(),
            can_inline: true,
        }
    }

    /// Disables inlining, for the root bucket, which must have a page.
    pub(crate) fn never_inline(mut self) -> Self {
        self.can_inline = false;
        self
    }

    /// Adds an item; keys must ascend (the caller checks).
    pub(crate) fn add<D: Disk>(
        &mut self,
        item: LeafItem<'_>,
        out: &mut PageWriter<D>,
    ) -> Result<(), BboltError> {
        if self
            .leaf
            .is_full_for(item.key.len() + item.value.len(), self.leaf_limit)
        {
            self.close_leaf(out)?;
        }
        self.leaf.push(item)
    }

    fn close_leaf<D: Disk>(&mut self, out: &mut PageWriter<D>) -> Result<(), BboltError> {
        if self.leaf.is_empty() {
            return Ok(());
        }
        let first_key = self.leaf.first_key().to_vec();
        let page = self.leaf.write(out)?;
        self.add_pointer(0, (first_key, page), out)
    }

    /// Adds a pointer to a written page at `height` (0 = parents of leaves).
    pub(crate) fn add_pointer<D: Disk>(
        &mut self,
        height: usize,
        pointer: PagePointer,
        out: &mut PageWriter<D>,
    ) -> Result<(), BboltError> {
        if self.levels.len() <= height {
            self.levels.resize_with(height + 1, TreeLevel::default);
        }
        let page_size = self.page_size;
        let Some(level) = self.levels.get_mut(height) else {
            return Err(BboltError::FileTooLarge);
        };
        level.push(pointer, page_size);
        // Write a full branch only with two pointers left over, so that the rest never forms a branch of one child.
        if level.pointers.len() < level.fitting + 2 {
            return Ok(());
        }
        let rest = level.pointers.split_off(level.fitting);
        let full = std::mem::take(level).pointers;
        for pointer in rest {
            level.push(pointer, page_size);
        }
        let parent = write_branch(full, out)?;
        self.add_pointer(height + 1, parent, out)
    }

    /// Writes all open pages and returns the root.
    pub(crate) fn finish<D: Disk>(
        mut self,
        out: &mut PageWriter<D>,
    ) -> Result<BucketRoot, BboltError> {
        let has_no_pages = self.levels.iter().all(|level| level.pointers.is_empty());
        // bbolt inlines buckets up to a quarter of a page.
        if has_no_pages && self.can_inline && self.leaf.size() <= self.page_size / 4 {
            return Ok(BucketRoot::Inline(self.leaf.encode_inline()));
        }
        if has_no_pages && self.leaf.is_empty() {
            return Ok(BucketRoot::Page(self.leaf.write(out)?));
        }
        self.close_leaf(out)?;
        let mut height = 0;
        loop {
            let Some(level) = self.levels.get_mut(height).map(std::mem::take) else {
                return Err(BboltError::FileTooLarge);
            };
            let is_top = self
                .levels
                .iter()
                .skip(height + 1)
                .all(|l| l.pointers.is_empty());
            if let ([(_, page)], true) = (level.pointers.as_slice(), is_top) {
                return Ok(BucketRoot::Page(*page));
            }
            self.close_level(height, level, out)?;
            height += 1;
        }
    }

    /// Writes the rest of a level as one branch, or two when it exceeds a page.
    fn close_level<D: Disk>(
        &mut self,
        height: usize,
        mut level: TreeLevel,
        out: &mut PageWriter<D>,
    ) -> Result<(), BboltError> {
        if level.pointers.len() > level.fitting && level.fitting > 2 {
            let last_two = level.pointers.split_off(level.pointers.len() - 2);
            let first = write_branch(level.pointers, out)?;
            self.add_pointer(height + 1, first, out)?;
            level.pointers = last_two;
        }
        let last = write_branch(level.pointers, out)?;
        self.add_pointer(height + 1, last, out)
    }
}

fn write_branch<D: Disk>(
    pointers: Vec<PagePointer>,
    out: &mut PageWriter<D>,
) -> Result<PagePointer, BboltError> {
    let children = pointers.len();
    if children < 2 {
        return Err(BboltError::TooFewChildren {
            page: out.next_page(),
            children,
        });
    }
    let keys: usize = pointers.iter().map(|(key, _)| key.len()).sum();
    let size = HEADER_LEN + children * ELEMENT_LEN + keys;
    let page = out.append(PageKind::Branch, children, size, |bytes| {
        let mut position = children * ELEMENT_LEN;
        for (key, child) in &pointers {
            bytes.extend_from_slice(&to_u32(position).to_le_bytes());
            bytes.extend_from_slice(&to_u32(key.len()).to_le_bytes());
            bytes.extend_from_slice(&child.0.to_le_bytes());
            position = position + key.len() - ELEMENT_LEN;
        }
        for (key, _) in &pointers {
            bytes.extend_from_slice(key);
        }
    })?;
    let first_key = pointers
        .into_iter()
        .next()
        .map(|(key, _)| key)
        .unwrap_or_default();
    Ok((first_key, page))
}
