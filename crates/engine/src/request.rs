//! What an engine is requested to do.

use bytes::Bytes;
use mainstay_ids::{LeaseId, Revision};

/// A single key, or a half-open range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRange {
    /// One key.
    Key(Bytes),
    /// Keys from the first, inclusive, to the second, exclusive. Empty when the second is not above the first.
    Between(Bytes, Bytes),
    /// Every key that is not below this one.
    From(Bytes),
}

impl KeyRange {
    /// Decodes etcd's pair of key and range end: no end is one key, an end of one zero byte is unbounded.
    pub fn from_wire(key: Bytes, range_end: Bytes) -> Self {
        match &range_end[..] {
            [] => Self::Key(key),
            [0] => Self::From(key),
            _ => Self::Between(key, range_end),
        }
    }

    /// Every key.
    pub fn all() -> Self {
        Self::From(Bytes::from_static(&[0]))
    }

    /// The first key that can be in the range.
    pub fn start(&self) -> &Bytes {
        match self {
            Self::Key(key) | Self::Between(key, _) | Self::From(key) => key,
        }
    }

    /// Returns true when the key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::Key(only) => only == key,
            Self::Between(first, end) => &first[..] <= key && key < &end[..],
            Self::From(first) => &first[..] <= key,
        }
    }

    /// Returns true when no key can be in the range.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Between(first, end) if end <= first)
    }
}

/// Which parts of the keys are returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Projection {
    /// Keys, values and revisions.
    #[default]
    Full,
    /// The number of keys only.
    CountOnly,
}

/// A read of a range at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeQuery {
    /// The keys.
    pub range: KeyRange,
    /// The revision to read at; the current one when `None`.
    pub at: Option<Revision>,
    /// At most this many keys; no limit when `None`.
    pub limit: Option<usize>,
    /// What to return of them.
    pub projection: Projection,
}

impl RangeQuery {
    /// Everything in the range, at the current revision.
    pub fn latest(range: KeyRange) -> Self {
        Self {
            range,
            at: None,
            limit: None,
            projection: Projection::Full,
        }
    }
}

/// The lease a put gives to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutLease {
    /// This lease; [`LeaseId::NONE`] detaches the key.
    Set(LeaseId),
    /// The lease the key has. The key must exist.
    Keep,
}

/// A write of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// The value; `None` keeps the present one, and the key must exist.
    pub value: Option<Bytes>,
    /// The lease.
    pub lease: PutLease,
    /// Return the version that is replaced.
    pub wants_previous: bool,
}

/// A delete of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRange {
    /// The keys.
    pub range: KeyRange,
    /// Return the versions that are deleted.
    pub wants_previous: bool,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A read. It observes the writes before it in the same transaction.
    Range(RangeQuery),
    /// A write.
    Put(Put),
    /// A delete.
    DeleteRange(DeleteRange),
    /// A nested transaction. Its compares observe the state before the outermost one.
    Txn(Txn),
}

/// Compares, and the operations for either outcome. All effects get one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold for `success`.
    pub compare: Vec<Compare>,
    /// Done when all compares hold.
    pub success: Vec<Op>,
    /// Done otherwise.
    pub failure: Vec<Op>,
}

impl Txn {
    /// A transaction of one unconditional operation.
    pub fn of(op: Op) -> Self {
        Self {
            success: vec![op],
            ..Self::default()
        }
    }

    /// Returns true when neither branch can write.
    pub fn is_read_only(&self) -> bool {
        self.success.iter().chain(&self.failure).all(|op| match op {
            Op::Range(_) => true,
            Op::Put(_) | Op::DeleteRange(_) => false,
            Op::Txn(txn) => txn.is_read_only(),
        })
    }

    /// Returns true when a branch contains a put.
    pub fn has_put(&self) -> bool {
        self.success.iter().chain(&self.failure).any(|op| match op {
            Op::Put(_) => true,
            Op::Range(_) | Op::DeleteRange(_) => false,
            Op::Txn(txn) => txn.has_put(),
        })
    }
}

/// A condition on every key of a range. A range without keys is compared as one key that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The keys.
    pub range: KeyRange,
    /// What is compared, and with what.
    pub target: CompareTarget,
    /// The outcome that holds.
    pub result: CompareResult,
}

/// Field of a key, and the value it is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompareTarget {
    /// Number of writes since the key was created; 0 when it does not exist.
    Version(i64),
    /// Revision of the creation; 0 when the key does not exist.
    CreateRevision(i64),
    /// Revision of the last write; 0 when the key does not exist.
    ModRevision(i64),
    /// The value. Never holds for a key that does not exist.
    Value(Bytes),
    /// The lease.
    Lease(LeaseId),
}

/// Outcome of a comparison that makes a [`Compare`] hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareResult {
    /// Equal.
    Equal,
    /// Greater than the given value.
    Greater,
    /// Less than the given value.
    Less,
    /// Not equal.
    NotEqual,
}

/// A page of the retained history, for one watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The keys.
    pub range: KeyRange,
    /// First revision.
    pub from: Revision,
    /// Last revision; it must be visible.
    pub upto: Revision,
    /// Return the version before each change.
    pub wants_previous: bool,
    /// The page ends after the first revision that reaches this size, or this many rows read.
    pub max_bytes: usize,
}
