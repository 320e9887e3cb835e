//! What every engine must do, as public functions over the protocol.
//!
//! Each function needs an engine of its own that was never written to. An engine with a store of its own runs
//! [`everything`], and adds tests of what it alone promises.
#![expect(
    clippy::missing_panics_doc,
    reason = "a claim that does not hold fails the test"
)]

mod history;
mod leases;
mod writes;

use std::sync::Arc;

use bytes::Bytes;
use mainstay_ids::{LeaseId, Revision};

pub use self::history::{
    a_watch_from_the_past_equals_the_history, compaction_keeps_what_is_readable,
    progress_never_exceeds_an_undelivered_event, slow_watch_delays_nobody,
};
pub use self::leases::{expired_lease_deletes_its_keys, leases_follow_their_keys};
pub use self::writes::{
    conditional_writes_answer_like_etcd, quota_refuses_puts_only, reads_at_each_revision_agree,
    transactions_get_one_revision,
};
use crate::engine::{Engine, WriteOutcome};
use crate::request::{DeleteRange, KeyRange, Op, Put, PutLease, Txn};

/// Runs the whole suite. `create` returns an engine that was never written to, with this quota.
pub async fn everything<E, F>(mut create: F)
where
    E: Engine,
    F: FnMut(Option<u64>) -> E,
{
    let mut engine = || -> Arc<dyn Engine> { Arc::new(create(None)) };
    conditional_writes_answer_like_etcd(&*engine()).await;
    transactions_get_one_revision(&*engine()).await;
    reads_at_each_revision_agree(&*engine()).await;
    compaction_keeps_what_is_readable(engine()).await;
    a_watch_from_the_past_equals_the_history(engine()).await;
    progress_never_exceeds_an_undelivered_event(engine()).await;
    slow_watch_delays_nobody(engine()).await;
    leases_follow_their_keys(&*engine()).await;
    expired_lease_deletes_its_keys(engine()).await;
    quota_refuses_puts_only(&create(Some(4096))).await;
}

/// Bytes of a text.
pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A put without a condition.
pub(crate) fn put(key: &str, value: &str, lease: LeaseId) -> Op {
    Op::Put(Put {
        key: bytes(key),
        value: Some(bytes(value)),
        lease: PutLease::Set(lease),
        wants_previous: true,
    })
}

/// A delete of one key.
pub(crate) fn delete(key: &str) -> Op {
    Op::DeleteRange(DeleteRange {
        range: KeyRange::Key(bytes(key)),
        wants_previous: true,
    })
}

/// Keys that start with a prefix that ends in a slash.
pub(crate) fn below(prefix: &str) -> KeyRange {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    KeyRange::Between(bytes(prefix), Bytes::from(end))
}

/// Writes one key and returns the revision.
pub(crate) async fn write(engine: &dyn Engine, key: &str, value: &str) -> Revision {
    let txn = Txn::of(put(key, value, LeaseId::NONE));
    engine.txn(txn).await.expect("put a key").revision
}

/// Deletes one key and returns the revision.
pub(crate) async fn remove(engine: &dyn Engine, key: &str) -> Revision {
    let txn = Txn::of(delete(key));
    engine.txn(txn).await.expect("delete a key").revision
}

/// The revision of a write whose condition held.
pub(crate) fn done(outcome: &WriteOutcome) -> Revision {
    match outcome {
        WriteOutcome::Done(revision) => *revision,
        WriteOutcome::Conflict { revision, .. } => {
            unreachable!("the condition does not hold at revision {revision}")
        }
    }
}
