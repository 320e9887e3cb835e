//! Random requests: those of an API server, and general ones.

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// One request.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Get(String, GetOptions),
    Put(String, String, PutOptions),
    Delete(String, DeleteOptions),
    Txn(Txn),
    Compact(i64),
    Grant(i64),
    Revoke(i64),
    TimeToLive(i64),
    /// Everything that a watch of a prefix reports up to the current revision.
    Watch(String, i64),
}

pub(super) struct Generator {
    random: StdRng,
    compacted: i64,
}

const RESOURCES: [&str; 3] = ["pods", "leases", "events"];

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            compacted: 0,
        }
    }

    /// Remembers what later requests depend on.
    pub(super) fn learn(&mut self, step: &Step, answer: &str) {
        if let (Step::Compact(revision), false) = (step, answer.starts_with("error")) {
            self.compacted = *revision;
        }
    }

    pub(super) fn next(&mut self, revision: i64) -> Step {
        match self.random.random_range(0..100) {
            0..22 => Step::Txn(self.conditional(revision)),
            22..34 => self.put(),
            34..62 => {
                let (key, options) = self.get(revision);
                Step::Get(key, options)
            }
            62..68 => {
                let (key, options) = self.delete();
                Step::Delete(key, options)
            }
            68..82 => Step::Txn(self.general(revision, 2)),
            82..84 => Step::Compact(self.random.random_range(self.compacted - 1..revision + 2)),
            84..88 => Step::Grant(self.lease()),
            88..90 => Step::Revoke(self.lease()),
            90..93 => Step::TimeToLive(self.lease()),
            _ => {
                let first = (self.compacted - 2).max(1);
                Step::Watch(self.prefix(), self.random.random_range(first..revision + 1))
            }
        }
    }

    fn is(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn prefix(&mut self) -> String {
        format!(
            "/registry/{}/",
            RESOURCES[self.random.random_range(0..RESOURCES.len())]
        )
    }

    fn key(&mut self) -> String {
        let prefix = self.prefix();
        format!("{prefix}{}", self.random.random_range(0..8))
    }

    fn value(&mut self) -> String {
        format!("value-{}", self.random.random_range(0..30))
    }

    fn lease(&mut self) -> i64 {
        self.random.random_range(70..76)
    }

    fn at(&mut self, revision: i64) -> i64 {
        let first = (self.compacted - 2).max(0);
        self.random.random_range(first..revision + 2)
    }

    /// The transactions of an API server: create, update, delete, and the vote for compaction.
    fn conditional(&mut self, revision: i64) -> Txn {
        let key = self.key();
        let read = [TxnOp::get(key.clone(), None)];
        let put = [TxnOp::put(
            key.clone(),
            self.value(),
            Some(self.put_options()),
        )];
        let expected = if self.is(50) { 0 } else { self.at(revision) };
        let unchanged = [Compare::mod_revision(
            key.clone(),
            CompareOp::Equal,
            expected,
        )];
        match self.random.random_range(0..4) {
            0 => Txn::new()
                .when([Compare::mod_revision(key, CompareOp::Equal, 0)])
                .and_then(put),
            1 => Txn::new().when(unchanged).and_then(put).or_else(read),
            2 => Txn::new()
                .when(unchanged)
                .and_then([TxnOp::delete(key, None)])
                .or_else(read),
            _ => Txn::new()
                .when([Compare::version(
                    "compact_rev_key",
                    CompareOp::Equal,
                    self.random.random_range(0..4),
                )])
                .and_then([TxnOp::put("compact_rev_key", revision.to_string(), None)])
                .or_else([TxnOp::get("compact_rev_key", None)]),
        }
    }

    fn put(&mut self) -> Step {
        let (key, options) = (self.key(), self.put_options());
        match self.random.random_range(0..10) {
            0 => Step::Put(key, String::new(), options.with_ignore_value()),
            1 => Step::Put(key, self.value(), options.with_ignore_value()),
            2 => Step::Put(key, self.value(), options.with_ignore_lease()),
            3 if self.is(20) => Step::Put(String::new(), self.value(), options),
            _ => Step::Put(key, self.value(), options),
        }
    }

    fn put_options(&mut self) -> PutOptions {
        let mut options = PutOptions::new();
        if self.is(20) {
            options = options.with_lease(self.lease());
        }
        if self.is(30) {
            options = options.with_prev_key();
        }
        options
    }

    fn delete(&mut self) -> (String, DeleteOptions) {
        let options = DeleteOptions::new();
        let options = if self.is(50) {
            options.with_prev_key()
        } else {
            options
        };
        match self.random.random_range(0..10) {
            0 => (self.prefix(), options.with_prefix()),
            1 => (self.key(), options.with_range(self.key())),
            _ => (self.key(), options),
        }
    }

    fn get(&mut self, revision: i64) -> (String, GetOptions) {
        let mut options = GetOptions::new();
        let key = match self.random.random_range(0..6) {
            0 => {
                options = options.with_from_key();
                self.key()
            }
            1 => {
                options = options.with_range(self.key());
                self.key()
            }
            2 | 3 => {
                options = options.with_prefix();
                self.prefix()
            }
            _ => self.key(),
        };
        if self.is(40) {
            options = options.with_limit(self.random.random_range(0..6));
        }
        if self.is(30) {
            options = options.with_revision(self.at(revision));
        }
        options = match self.random.random_range(0..12) {
            0 => options.with_keys_only(),
            1 => options.with_count_only(),
            2 => options.with_min_mod_revision(self.at(revision)),
            3 => options.with_max_mod_revision(self.at(revision)),
            4 => options.with_min_create_revision(self.at(revision)),
            5 => options.with_max_create_revision(self.at(revision)),
            6 => options.with_sort(SortTarget::Key, SortOrder::Descend),
            7 => options.with_sort(SortTarget::Key, SortOrder::Ascend),
            _ => options,
        };
        (key, options)
    }

    fn compare(&mut self, revision: i64) -> Compare {
        let op = match self.random.random_range(0..4) {
            0 => CompareOp::Equal,
            1 => CompareOp::Greater,
            2 => CompareOp::Less,
            _ => CompareOp::NotEqual,
        };
        let key = self.key();
        let compare = match self.random.random_range(0..5) {
            0 => Compare::version(key, op, self.random.random_range(0..4)),
            1 => Compare::create_revision(key, op, self.at(revision)),
            2 => Compare::mod_revision(key, op, self.at(revision)),
            3 => Compare::value(key, op, self.value()),
            _ => Compare::lease(key, op, self.lease()),
        };
        if self.is(20) {
            compare.with_range(self.key())
        } else {
            compare
        }
    }

    fn general(&mut self, revision: i64, depth: u32) -> Txn {
        let compares: Vec<Compare> = (0..self.random.random_range(0..3))
            .map(|_| self.compare(revision))
            .collect();
        let success = self.ops(revision, depth);
        let failure = self.ops(revision, depth);
        Txn::new().when(compares).and_then(success).or_else(failure)
    }

    fn ops(&mut self, revision: i64, depth: u32) -> Vec<TxnOp> {
        let count = self.random.random_range(0..4);
        (0..count)
            .map(|_| match self.random.random_range(0..8) {
                0..3 => TxnOp::put(self.key(), self.value(), Some(self.put_options())),
                3..6 => {
                    let (key, options) = self.get(revision);
                    TxnOp::get(key, Some(options))
                }
                6 => {
                    let (key, options) = self.delete();
                    TxnOp::delete(key, Some(options))
                }
                _ if depth > 0 => TxnOp::txn(self.general(revision, depth - 1)),
                _ => TxnOp::get(self.key(), None),
            })
            .collect()
    }
}
