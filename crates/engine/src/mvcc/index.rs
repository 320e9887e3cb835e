//! The key index: for each key, the positions of its retained versions. Values are not in it.
//!
//! Memory: the key once, and 40 bytes for each retained version.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use mainstay_ids::Revision;

use crate::request::KeyRange;
use crate::row::{Change, Position, Row};

/// Where a version is, and what compares need of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) at: Position,
    pub(super) create: Revision,
    /// 0 for a delete.
    pub(super) version: i64,
}

impl Stamp {
    pub(super) fn of(row: &Row) -> Self {
        let (create, version) = match &row.change {
            Change::Put(version) => (version.create_revision, version.version),
            Change::Delete(_) => (Revision(0), 0),
        };
        Self {
            at: row.at,
            create,
            version,
        }
    }

    fn is_delete(&self) -> bool {
        self.version == 0
    }
}

#[derive(Debug, Default)]
pub(super) struct KeyIndex {
    keys: BTreeMap<Bytes, Vec<Stamp>>,
}

impl KeyIndex {
    /// Adds the newest version of a key.
    pub(super) fn append(&mut self, key: &Bytes, stamp: Stamp) {
        if let Some(stamps) = self.keys.get_mut(key) {
            stamps.push(stamp);
        } else {
            // A copy: the original may be a slice of a whole request.
            let key = Bytes::copy_from_slice(key);
            self.keys.insert(key, vec![stamp]);
        }
    }

    /// The version of a key that is live at a revision.
    pub(super) fn live(&self, key: &[u8], at: Revision) -> Option<Stamp> {
        live_in(self.keys.get(key)?, at)
    }

    /// The newest version of a key, unless it is deleted.
    pub(super) fn newest(&self, key: &[u8]) -> Option<Stamp> {
        let stamp = self.keys.get(key)?.last()?;
        (!stamp.is_delete()).then_some(*stamp)
    }

    /// The keys of a range that are live at a revision, in byte order.
    pub(super) fn live_range<'i>(
        &'i self,
        range: &KeyRange,
        at: Revision,
    ) -> Box<dyn Iterator<Item = (&'i Bytes, Stamp)> + 'i> {
        let end = match range {
            KeyRange::Key(key) => Bound::Included(key.clone()),
            KeyRange::Between(_, end) => Bound::Excluded(end.clone()),
            KeyRange::From(_) => Bound::Unbounded,
        };
        if range.is_empty() {
            return Box::new(std::iter::empty()); // the map panics on a reversed range
        }
        let bounds = (Bound::Included(range.start().clone()), end);
        let found = self.keys.range::<Bytes, _>(bounds);
        Box::new(
            found.filter_map(move |(key, stamps)| live_in(stamps, at).map(|found| (key, found))),
        )
    }

    /// Compacts up to `limit` keys after `after`. Returns the positions that are no longer needed, and the last key
    /// when there are more.
    ///
    /// Of each key the newest version at or below `revision` is kept if it is a put, or a delete of exactly that
    /// revision: a watch may start there and must receive it.
    pub(super) fn compact_some(
        &mut self,
        revision: Revision,
        after: Option<&Bytes>,
        limit: usize,
    ) -> (Vec<Position>, Option<Bytes>) {
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        let mut dropped = Vec::new();
        let mut emptied = Vec::new();
        let mut last = None;
        for (key, stamps) in self
            .keys
            .range_mut::<Bytes, _>((from, Bound::Unbounded))
            .take(limit)
        {
            compact_key(stamps, revision, &mut dropped);
            if stamps.is_empty() {
                emptied.push(key.clone());
            }
            last = Some(key.clone());
        }
        let more = last.filter(|key| {
            let rest = (Bound::Excluded(key.clone()), Bound::Unbounded);
            self.keys.range::<Bytes, _>(rest).next().is_some()
        });
        for key in emptied {
            self.keys.remove(&key);
        }
        (dropped, more)
    }
}

fn live_in(stamps: &[Stamp], at: Revision) -> Option<Stamp> {
    let found = stamps.partition_point(|stamp| stamp.at.main <= at);
    let stamp = stamps.get(found.checked_sub(1)?)?;
    (!stamp.is_delete()).then_some(*stamp)
}

fn compact_key(stamps: &mut Vec<Stamp>, revision: Revision, dropped: &mut Vec<Position>) {
    let below = stamps.partition_point(|stamp| stamp.at.main <= revision);
    let Some(newest) = below.checked_sub(1).and_then(|at| stamps.get(at)) else {
        return;
    };
    let is_kept = !newest.is_delete() || newest.at.main == revision;
    let drop = if is_kept { below - 1 } else { below };
    dropped.extend(stamps.drain(..drop).map(|stamp| stamp.at));
    stamps.shrink_to_fit();
}
