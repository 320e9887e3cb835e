//! Samples of the live cluster during the run.

use std::time::Duration;

use mainstay_ids::Revision;
use mainstay_testkit::{EtcdCluster, KeyValueHash};
use tokio::time::timeout;

const SAMPLE_TIMEOUT: Duration = Duration::from_secs(5);

/// HashKV at several revisions, taken before they were compacted.
#[derive(Debug, Default)]
pub(super) struct HashSamples(Vec<HashSample>);

#[derive(Clone, Copy, Debug)]
pub(super) struct HashSample {
    pub(super) revision: Revision,
    pub(super) hash: KeyValueHash,
}

impl HashSamples {
    /// Samples a member that has a quorum; takes no sample if none responds.
    pub(super) async fn record(&mut self, cluster: &EtcdCluster) {
        let asked = async {
            let leader = cluster.find_leader().await?;
            let mut client = cluster.members[leader].try_client().await.ok()?;
            let revision = client.get("k", None).await.ok()?.header()?.revision();
            let answer = client.hash_kv(revision).await.ok()?;
            let compacted = answer.compact_version();
            Some(HashSample {
                revision: Revision(revision),
                hash: KeyValueHash {
                    hash: answer.hash(),
                    compact_revision: (compacted >= 0).then_some(Revision(compacted)),
                },
            })
        };
        self.0
            .extend(timeout(SAMPLE_TIMEOUT, asked).await.ok().flatten());
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// At most `most` samples inside the ranges, evenly distributed over time.
    pub(super) fn select_within(
        &self,
        ranges: &[(Revision, Revision)],
        most: usize,
    ) -> Vec<HashSample> {
        let is_inside = |sample: &&HashSample| {
            let mut ranges = ranges.iter();
            ranges.any(|(from, to)| (*from..=*to).contains(&sample.revision))
        };
        let inside: Vec<HashSample> = self.0.iter().filter(is_inside).copied().collect();
        let step = inside.len().div_ceil(most).max(1);
        inside.into_iter().step_by(step).collect()
    }
}
