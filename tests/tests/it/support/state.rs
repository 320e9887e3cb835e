//! The content of a key space at one revision, for comparisons.

use std::collections::BTreeMap;

use mainstay_ids::{LeaseId, Revision};
use mainstay_testkit::{EtcdServer, KeyValueHash, Kv};

/// The content of an etcd at one revision.
#[derive(Debug)]
pub(crate) struct EtcdState {
    pub(crate) revision: Revision,
    pub(crate) hash: KeyValueHash,
    pub(crate) keys: Vec<Kv>,
}

impl EtcdState {
    /// The newest state.
    pub(crate) async fn read(etcd: &EtcdServer) -> Self {
        Self::read_at(etcd, etcd.revision().await).await
    }

    /// An older state.
    pub(crate) async fn read_at(etcd: &EtcdServer, revision: Revision) -> Self {
        Self {
            revision,
            hash: etcd.hash_kv(revision).await,
            keys: etcd.all_keys_at(revision).await,
        }
    }

    /// Fails unless a restored etcd is in this state.
    ///
    /// The source may have been compacted since the base of the backup was taken. Hashes are comparable only after the same
    /// compaction, so the restored etcd is then compacted as well.
    pub(crate) async fn assert_restored(&self, etcd: &EtcdServer, context: &str) {
        assert_eq!(etcd.revision().await, self.revision, "{context}");
        let mut hash = etcd.hash_kv(self.revision).await;
        if let Some(at) = self.hash.compact_revision
            && hash.compact_revision != Some(at)
        {
            etcd.compact(at).await;
            hash = etcd.hash_kv(self.revision).await;
        }
        assert_same_keys(&etcd.all_keys().await, &self.keys, context);
        assert_eq!(hash, self.hash, "{context}");
        self.assert_leases(etcd, context).await;
    }

    /// Compares the leases: a key on a missing lease would never expire.
    async fn assert_leases(&self, etcd: &EtcdServer, context: &str) {
        let mut expected: BTreeMap<LeaseId, Vec<Vec<u8>>> = BTreeMap::new();
        for kv in self.keys.iter().filter(|kv| kv.lease != LeaseId::NONE) {
            expected.entry(kv.lease).or_default().push(kv.key.clone());
        }
        let leases = etcd.list_leases().await;
        let alive = leases.iter().all(|lease| lease.ttl > 0);
        assert!(alive, "{context}: {leases:?}");
        let attached = leases.into_iter().filter(|lease| !lease.keys.is_empty());
        let attached = attached.map(|lease| (lease.id, lease.keys)).collect();
        assert_eq!(expected, attached, "{context}: keys on leases");
    }
}

/// Compares without printing thousands of keys.
pub(crate) fn assert_same_keys(found: &[Kv], expected: &[Kv], context: &str) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected, "{context}: the first key that differs");
    }
    assert_eq!(found.len(), expected.len(), "{context}: number of keys");
}
