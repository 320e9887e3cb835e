//! A write transaction: appends new pages after all pages in use, then writes one meta page that makes them current.
//!
//! ```text
//! write pages ≥ high-water mark → sync → write the meta page not in use → sync
//! ```
//!
//! **After a crash**: the old meta still describes the old state, and none of its pages was overwritten. Unreachable
//! pages count as free: the freelist is never stored.

use std::collections::BTreeMap;

use mainstay_ids::{PageId, TxId};

use crate::bucket::BucketRoot;
use crate::database::Database;
use crate::disk::Disk;
use crate::error::BboltError;
use crate::meta::Meta;
use crate::page::LeafItem;
use crate::spine::{LastLeaf, Spine};
use crate::tree::{OpenLeaf, OwnedItem, PagePointer, PageWriter, TreeBuilder};

/// First data page; 0 and 1 are the metas.
const FIRST_PAGE: PageId = PageId(2);

/// Changes to a database that become visible atomically.
#[derive(Debug)]
pub struct Update<D> {
    out: PageWriter<D>,
    /// The meta this update starts from and its page (0 or 1); `None` for a new file.
    base: Option<(Meta, u64)>,
    buckets: BTreeMap<Vec<u8>, BucketRoot>,
}

impl<D: Disk> Update<D> {
    /// Starts a new database. The content of `disk` is overwritten.
    pub fn create(disk: D, page_size: u32) -> Result<Self, BboltError> {
        let out = PageWriter::new(disk, page_size, FIRST_PAGE)?;
        Ok(Self {
            out,
            base: None,
            buckets: BTreeMap::new(),
        })
    }

    /// Starts from the current state of an existing database.
    ///
    /// The caller must hold the file lock: two writers would overwrite each other's pages.
    pub fn open(disk: D) -> Result<Self, BboltError> {
        Self::open_after(disk, PageId(0))
    }

    /// As [`Self::open`], but keeps the pages before `next`, which a [`LeafWriter`] has written.
    pub fn open_after(disk: D, next: PageId) -> Result<Self, BboltError> {
        let database = Database::open(&disk)?;
        let (meta, slot) = (*database.meta(), database.slot());
        let buckets = database.buckets()?.into_iter().collect();
        let out = PageWriter::new(disk, meta.page_size, next.max(meta.high_water))?;
        Ok(Self {
            out,
            base: Some((meta, slot)),
            buckets,
        })
    }

    /// The database this update started from; `None` for a new file.
    fn base_database(&self) -> Result<Option<Database<&D>>, BboltError> {
        self.base
            .map(|_| Database::open(&self.out.disk))
            .transpose()
    }

    /// Replaces the whole content of a bucket, creating it when missing.
    pub fn rewrite_bucket(&mut self, name: &[u8]) -> BucketWriter<'_, D> {
        let tree = TreeBuilder::new(self.out.page_size);
        BucketWriter {
            update: self,
            name: name.to_vec(),
            tree,
            last_key: None,
        }
    }

    /// Appends items after the last one of a bucket, creating it when missing.
    pub fn append_to_bucket(&mut self, name: &[u8]) -> Result<BucketWriter<'_, D>, BboltError> {
        self.append_after_key(name, None)
    }

    /// Deletes every item of a bucket with a key greater than `bound`, then appends after the rest.
    pub fn append_after_key(
        &mut self,
        name: &[u8],
        bound: Option<&[u8]>,
    ) -> Result<BucketWriter<'_, D>, BboltError> {
        let mut tree = TreeBuilder::new(self.out.page_size);
        let mut last_key = None;
        if let (Some(root), Some(base)) = (self.buckets.get(name), self.base_database()?) {
            let spine = Spine::find(&base, root, bound)?;
            let reopened = reopen_leaf(&base, spine.leaf)?;
            last_key = reopened.last().map(|(key, _)| key.clone());
            add_levels(&mut tree, spine.levels, &mut self.out)?;
            for (key, value) in &reopened {
                tree.add(
                    LeafItem {
                        key,
                        value,
                        is_bucket: false,
                    },
                    &mut self.out,
                )?;
            }
        }
        Ok(BucketWriter {
            update: self,
            name: name.to_vec(),
            tree,
            last_key,
        })
    }

    /// Attaches leaves written by a [`LeafWriter`] after the last item of a bucket.
    ///
    /// The bucket's last leaf stays in place. The leaves must be in ascending order and after the bucket's last key;
    /// this is not checked here, only by [`crate::check()`].
    pub fn attach_leaves(
        &mut self,
        name: &[u8],
        leaves: impl IntoIterator<Item = Result<WrittenLeaf, BboltError>>,
    ) -> Result<(), BboltError> {
        let mut tree = TreeBuilder::new(self.out.page_size);
        if let (Some(root), Some(base)) = (self.buckets.get(name), self.base_database()?) {
            let spine = Spine::find(&base, root, None)?;
            add_levels(&mut tree, spine.levels, &mut self.out)?;
            match spine.leaf {
                LastLeaf::None => {}
                LastLeaf::InPlace(pointer) => tree.add_pointer(0, pointer, &mut self.out)?,
                LastLeaf::Items(items) => write_leaf(&mut tree, &items, &mut self.out)?,
            }
        }
        for leaf in leaves {
            let leaf = leaf?;
            match leaf {
                WrittenLeaf::Page { first_key, page } => {
                    tree.add_pointer(0, (first_key, page), &mut self.out)?;
                }
                WrittenLeaf::Tail { page, bound } => {
                    let items = self.read_written_items(page)?;
                    let first =
                        items.partition_point(|(key, _)| key.as_slice() <= bound.as_slice());
                    let kept = items.get(first..).unwrap_or_default();
                    write_leaf(&mut tree, kept, &mut self.out)?;
                }
            }
        }
        let root = tree.finish(&mut self.out)?;
        self.buckets.insert(name.to_vec(), root);
        Ok(())
    }

    /// Reads the items of a page that no meta reaches yet.
    fn read_written_items(&self, page: PageId) -> Result<Vec<OwnedItem>, BboltError> {
        let Some((meta, slot)) = self.base else {
            return Ok(Vec::new());
        };
        let meta = Meta {
            high_water: self.out.next_page(),
            ..meta
        };
        let ahead = Database::from_parts(&self.out.disk, meta, slot);
        read_items(&ahead, page)
    }

    /// Removes a bucket.
    pub fn remove_bucket(&mut self, name: &[u8]) {
        self.buckets.remove(name);
    }

    /// Returns true when the bucket exists.
    pub fn has_bucket(&self, name: &[u8]) -> bool {
        self.buckets.contains_key(name)
    }

    /// Makes the changes durable and visible. Returns the new meta.
    pub fn commit(mut self) -> Result<Meta, BboltError> {
        let mut root = TreeBuilder::new(self.out.page_size).never_inline();
        for (name, bucket) in &self.buckets {
            let value = bucket.encode();
            root.add(
                LeafItem {
                    key: name,
                    value: &value,
                    is_bucket: true,
                },
                &mut self.out,
            )?;
        }
        let BucketRoot::Page(root) = root.finish(&mut self.out)? else {
            return Err(BboltError::FileTooLarge);
        };
        self.out.flush()?;
        let high_water = self.out.next_page();
        let page_size = self.out.page_size;
        let meta = Meta {
            page_size,
            root,
            freelist: None,
            high_water,
            txid: TxId(2),
        };
        let needed = meta.bytes_in_use().ok_or(BboltError::FileTooLarge)?;
        // The pages must be durable before the meta that points at them.
        self.reserve(needed)?;
        self.sync()?;
        let current = if let Some((old, slot)) = self.base {
            let (slot, txid) = old.next_slot(slot).ok_or(BboltError::FileTooLarge)?;
            let meta = Meta { txid, ..meta };
            self.write_meta(&meta, slot)?;
            meta
        } else {
            self.write_meta(&meta, 0)?;
            self.write_meta(
                &Meta {
                    txid: TxId(1),
                    ..meta
                },
                1,
            )?;
            meta
        };
        self.sync()?;
        Ok(current)
    }

    /// Extends the file to `needed` bytes; a longer existing file is kept.
    fn reserve(&self, needed: u64) -> Result<(), BboltError> {
        let failed = |source| BboltError::Write {
            offset: needed,
            len: 0,
            source,
        };
        let size = self.out.disk.size().map_err(failed)?;
        if size < needed || self.base.is_none() {
            self.out.disk.set_size(needed).map_err(failed)?;
        }
        Ok(())
    }

    fn write_meta(&self, meta: &Meta, slot: u64) -> Result<(), BboltError> {
        let page = meta.encode(slot);
        let offset = slot * u64::from(meta.page_size);
        self.out
            .disk
            .write_all_at(&page, offset)
            .map_err(|source| BboltError::Write {
                offset,
                len: page.len(),
                source,
            })
    }

    fn sync(&self) -> Result<(), BboltError> {
        self.out
            .disk
            .sync()
            .map_err(|source| BboltError::Sync { source })
    }
}

fn add_levels<D: Disk>(
    tree: &mut TreeBuilder,
    levels: Vec<Vec<PagePointer>>,
    out: &mut PageWriter<D>,
) -> Result<(), BboltError> {
    // Top level first: a branch written while seeding a lower level must follow the pointers already there.
    for (height, level) in levels.into_iter().enumerate().rev() {
        for pointer in level {
            tree.add_pointer(height, pointer, out)?;
        }
    }
    Ok(())
}

fn write_leaf<D: Disk>(
    tree: &mut TreeBuilder,
    items: &[OwnedItem],
    out: &mut PageWriter<D>,
) -> Result<(), BboltError> {
    let mut leaf = OpenLeaf::default();
    for (key, value) in items {
        leaf.push(LeafItem {
            key,
            value,
            is_bucket: false,
        })?;
    }
    if leaf.is_empty() {
        return Ok(());
    }
    let first_key = leaf.first_key().to_vec();
    let page = leaf.write(out)?;
    tree.add_pointer(0, (first_key, page), out)
}

/// The items of the last kept leaf, to be written again together with the new ones.
fn reopen_leaf<D: Disk>(base: &Database<&D>, leaf: LastLeaf) -> Result<Vec<OwnedItem>, BboltError> {
    let page = match leaf {
        LastLeaf::None => return Ok(Vec::new()),
        LastLeaf::Items(items) => return Ok(items),
        LastLeaf::InPlace((_, page)) => page,
    };
    read_items(base, page)
}

fn read_items<D: Disk>(
    database: &Database<&D>,
    page: PageId,
) -> Result<Vec<OwnedItem>, BboltError> {
    let mut buffer = Vec::new();
    let page = database.read_page(page, &mut buffer)?;
    (0..page.count())
        .map(|element| {
            page.item(element)
                .map(|item| (item.key.to_vec(), item.value.to_vec()))
        })
        .collect()
}

/// Accepts the items of one bucket in ascending order. Without [`BucketWriter::finish`] they are discarded.
#[derive(Debug)]
pub struct BucketWriter<'u, D> {
    update: &'u mut Update<D>,
    name: Vec<u8>,
    tree: TreeBuilder,
    last_key: Option<Vec<u8>>,
}

impl<D: Disk> BucketWriter<'_, D> {
    /// Adds one item; its key must be greater than the one before.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), BboltError> {
        match &mut self.last_key {
            Some(last) if last.as_slice() >= key => return Err(BboltError::NotAscending),
            Some(last) => {
                last.clear();
                last.extend_from_slice(key);
            }
            None => self.last_key = Some(key.to_vec()),
        }
        self.tree.add(
            LeafItem {
                key,
                value,
                is_bucket: false,
            },
            &mut self.update.out,
        )
    }

    /// Completes the bucket and records its new content in the update.
    pub fn finish(self) -> Result<(), BboltError> {
        let root = self.tree.finish(&mut self.update.out)?;
        self.update.buckets.insert(self.name, root);
        Ok(())
    }
}

/// A leaf written before its tree is known.
#[derive(Debug)]
pub enum WrittenLeaf {
    /// A whole page of the file.
    Page {
        /// First key of the leaf.
        first_key: Vec<u8>,
        /// Page of the leaf.
        page: PageId,
    },
    /// Only the items after `bound` are used; they are written again.
    Tail {
        /// Page of the leaf.
        page: PageId,
        /// The last key to skip.
        bound: Vec<u8>,
    },
}

/// Writes leaves after the high-water mark of a file whose tree is still being received.
#[derive(Debug)]
pub struct LeafWriter<D> {
    out: PageWriter<D>,
    leaf: OpenLeaf,
    limit: usize,
}

impl<D: Disk> LeafWriter<D> {
    /// Writes leaves of up to one page each, starting at page `first`.
    pub fn new(disk: D, page_size: u32, first: PageId) -> Result<Self, BboltError> {
        let limit = crate::bytes::to_index(page_size);
        Ok(Self {
            out: PageWriter::new(disk, page_size, first)?,
            leaf: OpenLeaf::default(),
            limit,
        })
    }

    /// Adds an item; keys must ascend. Returns first key and page of a leaf that this completed.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<Option<PagePointer>, BboltError> {
        let done = if self.leaf.is_full_for(key.len() + value.len(), self.limit) {
            self.close_leaf()?
        } else {
            None
        };
        self.leaf.push(LeafItem {
            key,
            value,
            is_bucket: false,
        })?;
        Ok(done)
    }

    fn close_leaf(&mut self) -> Result<Option<PagePointer>, BboltError> {
        if self.leaf.is_empty() {
            return Ok(None);
        }
        let first_key = self.leaf.first_key().to_vec();
        let page = self.leaf.write(&mut self.out)?;
        Ok(Some((first_key, page)))
    }

    /// Writes the last leaf. Returns it and the next free page.
    pub fn finish(mut self) -> Result<(Option<PagePointer>, PageId), BboltError> {
        let last = self.close_leaf()?;
        self.out.flush()?;
        Ok((last, self.out.next_page()))
    }
}
