//! Fills an etcd with parallel writes, one revision each.
//!
//! Writers own disjoint keys, so each can delete a key that exists: a delete without a match creates no revision. The
//! writes are determined by the seed, their order across writers is not.

use anyhow::Context;
use etcd_client::KvClient;
use mainstay_testkit::EtcdServer;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// Parallel writers; etcd commits waiting requests in batches.
const WRITERS: usize = 96;
/// Connections they share.
const CONNECTIONS: usize = 4;
/// One write in this many is a delete.
const DELETE_EVERY: u64 = 10;

/// The parameters of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DatasetShape {
    /// Number of keys in the full snapshot.
    pub(super) keys: usize,
    /// Size of a value in bytes.
    pub(super) value_bytes: usize,
    /// Number of writes after the full snapshot, one in ten a delete.
    pub(super) writes: usize,
    /// Number of delta objects.
    pub(super) deltas: usize,
}

impl DatasetShape {
    /// The size of the targets, multiplied by `scale`.
    pub(super) fn at_scale(scale: u32) -> Self {
        let scale = scale as usize;
        Self {
            keys: 400_000 * scale,
            value_bytes: 1_000,
            writes: 500_000 * scale,
            deltas: 12,
        }
    }
}

/// All writers of one etcd.
pub(super) struct BenchWriters {
    writers: Vec<BenchWriter>,
}

struct BenchWriter {
    kv: KvClient,
    shape: DatasetShape,
    rng: StdRng,
    /// This writer's keys are `index`, `index + WRITERS`, and so on.
    index: usize,
    exists: Vec<bool>,
    writes: u64,
}

impl BenchWriters {
    /// Connects the writers.
    pub(super) async fn connect(etcd: &EtcdServer, shape: DatasetShape) -> Self {
        let mut connections = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            connections.push(etcd.client().await.kv_client());
        }
        let writer = |(index, kv): (usize, &KvClient)| BenchWriter {
            kv: kv.clone(),
            shape,
            rng: StdRng::seed_from_u64(index as u64),
            index,
            exists: vec![false; shape.keys.saturating_sub(index).div_ceil(WRITERS)],
            writes: 0,
        };
        Self {
            writers: (0..WRITERS)
                .zip(connections.iter().cycle())
                .map(writer)
                .collect(),
        }
    }

    /// Writes every key once.
    pub(super) async fn fill(&mut self) -> anyhow::Result<()> {
        self.run_each(|mut writer| async move {
            for slot in 0..writer.exists.len() {
                writer.put(slot).await?;
            }
            Ok(writer)
        })
        .await
    }

    /// Sends this many writes, each a revision of its own.
    pub(super) async fn write(&mut self, count: usize) -> anyhow::Result<()> {
        self.run_each(|mut writer| async move {
            let share = count / WRITERS + usize::from(writer.index < count % WRITERS);
            for _ in 0..share {
                writer.write_next().await?;
            }
            Ok(writer)
        })
        .await
    }

    async fn run_each<F>(&mut self, work: impl Fn(BenchWriter) -> F) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<BenchWriter>> + Send + 'static,
    {
        let mut tasks: JoinSet<_> = self.writers.drain(..).map(work).collect();
        while let Some(ended) = tasks.join_next().await {
            self.writers.push(ended.context("a writer panicked")??);
        }
        Ok(())
    }
}

impl BenchWriter {
    async fn write_next(&mut self) -> anyhow::Result<()> {
        self.writes += 1;
        let mut slot = self.rng.random_range(0..self.exists.len());
        if !self.writes.is_multiple_of(DELETE_EVERY) {
            return self.put(slot).await;
        }
        while !self.exists[slot] {
            slot = self.rng.random_range(0..self.exists.len());
        }
        self.exists[slot] = false;
        let answer = self
            .kv
            .delete(self.key(slot), None)
            .await
            .context("failed to delete a key")?;
        anyhow::ensure!(answer.deleted() == 1, "a delete found no key");
        Ok(())
    }

    async fn put(&mut self, slot: usize) -> anyhow::Result<()> {
        self.exists[slot] = true;
        let number = self.index + slot * WRITERS;
        let value = build_value(number, self.shape.value_bytes, &mut self.rng);
        self.kv
            .put(self.key(slot), value, None)
            .await
            .context("failed to put a key")?;
        Ok(())
    }

    fn key(&self, slot: usize) -> String {
        let number = self.index + slot * WRITERS;
        format!(
            "/registry/configmaps/namespace-{:03}/object-{number:08}",
            number % 500
        )
    }
}

/// A distinct value for each number.
pub(super) fn seeded_value(number: usize, bytes: usize) -> Vec<u8> {
    build_value(number, bytes, &mut StdRng::seed_from_u64(number as u64))
}

/// Text like that of a Kubernetes object: repeated names and random hex digits.
fn build_value(number: usize, bytes: usize, rng: &mut StdRng) -> Vec<u8> {
    let head = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"object-{number:08}\",\
         \"namespace\":\"namespace-{:03}\",\"labels\":{{\"app\":\"bench\"}}}},\"data\":{{\"digest\":\"",
        number % 500
    );
    let tail = "\"}}";
    let room = bytes.saturating_sub(head.len() + tail.len());
    let mut random = vec![0u8; room.div_ceil(2)];
    rng.fill(random.as_mut_slice());
    let mut digits = hex::encode(random);
    digits.truncate(room);
    [head.as_bytes(), digits.as_bytes(), tail.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_json_of_the_requested_length() {
        let mut rng = StdRng::seed_from_u64(1);
        let text = build_value(399_999, 1_000, &mut rng);
        assert_eq!(text.len(), 1_000);
        let parsed: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(parsed["metadata"]["name"], "object-00399999");
        assert_ne!(
            text,
            build_value(399_999, 1_000, &mut rng),
            "values do not repeat"
        );
    }
}
