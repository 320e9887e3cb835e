//! Reads the history of the own etcd, to verify that the store belongs to it. The comparison is in `mainstay-history`.
//!
//! ```text
//! newest delta ─read to its end─► its last event ──────────┐
//!   (or full)                                              │
//! etcd ─ the key at that revision ─► key history ──────────┴─► match_history (pure)
//! ```
//!
//! If the store holds full snapshots only, the event comes from the newest one, if it is small. **Limits**: a large full
//! snapshot is not read; a new full snapshot then comes first, so that no delta builds on a different history.

use std::time::Duration;

use etcd_client::{GetOptions, KeyValue};
use mainstay_history::{KeyLookup, LiveHistory, WrittenKey};
use mainstay_ids::Revision;

use crate::etcd::{EtcdCall, EtcdClient, EtcdError, with_timeout};

/// The own member, which must have been confirmed to have reached the revisions that are read.
pub(super) struct MemberHistory<'a> {
    pub(super) etcd: &'a EtcdClient,
    /// Timeout of one read.
    pub(super) limit: Duration,
}

impl LiveHistory for MemberHistory<'_> {
    type Error = EtcdError;

    async fn key_at(&self, key: &[u8], revision: Option<Revision>) -> Result<KeyLookup, EtcdError> {
        let client = self.etcd.own_client().await?;
        let mut kv = client.kv_client().max_decoding_message_size(usize::MAX);
        // etcd reads at the current revision for 0. A serializable read suffices: the caller confirmed the revision.
        let options = GetOptions::new()
            .with_serializable()
            .with_revision(revision.unwrap_or_default().0);
        let answer = kv.get(key, Some(options));
        match with_timeout(self.limit, EtcdCall::Read, answer).await {
            Ok(answer) => {
                let found = answer.kvs().first();
                Ok(found.map_or(KeyLookup::Absent, |kv| KeyLookup::Present(to_written(kv))))
            }
            Err(error) if error.is_compacted() => Ok(KeyLookup::Unavailable),
            Err(error) => Err(error),
        }
    }
}

fn to_written(kv: &KeyValue) -> WrittenKey {
    WrittenKey::new(
        Revision(kv.create_revision()),
        Revision(kv.mod_revision()),
        kv.version(),
        kv.value(),
    )
}
