//! The product, measured as a user runs it: a process that reads a bucket of provider `Local`.
//!
//! What it made is given to a real etcd, and must have the `HashKV` of the etcd that was backed up.

use std::path::{Path, PathBuf};

use anyhow::Context;
use mainstay_testkit::Etcd;

use super::args::PageCache;
use super::claims::megabytes;
use super::dataset::{BUCKET, Dataset, ETCD, Hash, PREFIX, length, options, remove};
use super::timed::{Cost, Program, median};

/// The program measured, where it works, and how often.
#[derive(Clone, Debug)]
pub(super) struct Bench<'a> {
    /// The program.
    pub(super) restorer: &'a Path,
    /// The backup.
    pub(super) dataset: &'a Dataset,
    /// A directory for everything that is made.
    pub(super) scratch: &'a Path,
    /// Runs of each program.
    pub(super) runs: usize,
    /// What the page cache holds before each.
    pub(super) page_cache: PageCache,
}

/// A directory the product restored.
#[derive(Clone, Debug)]
pub(super) struct Restored {
    /// What it cost.
    pub(super) cost: Cost,
    /// Where it is.
    pub(super) data_dir: PathBuf,
    /// Bytes of its database.
    pub(super) database_bytes: u64,
}

/// `verify` and the tool it is compared with, on the same database.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verified {
    /// `mainstay-restorer verify --data-dir`
    pub(super) ours: Cost,
    /// `etcdutl snapshot status`
    pub(super) etcdutl: Cost,
}

impl Bench<'_> {
    /// Measures `restore` once, and keeps what it made.
    pub(super) fn restore(&self) -> anyhow::Result<Restored> {
        let data_dir = self.scratch.join("restored");
        remove(&data_dir)?;
        let cost = self.once(&self.restore_program(&self.dataset.home, &data_dir))?;
        let database_bytes = length(&database(&data_dir))?;
        Ok(Restored {
            cost,
            data_dir,
            database_bytes,
        })
    }

    /// Measures `compact`, and fails unless what it made restores to the history it should.
    pub(super) async fn compact(&self) -> anyhow::Result<Cost> {
        let home = self.scratch.join("compacted");
        let program = self
            .verb("compact", &home)
            .arg_pair("--scratch-dir", &self.scratch.join("compact-scratch"));
        let mut costs = Vec::with_capacity(self.runs);
        for _ in 0..self.runs {
            remove(&home)?;
            self.dataset.link_into(&home)?;
            costs.push(self.once(&program)?);
        }
        let data_dir = self.scratch.join("from-compacted");
        self.restore_program(&home, &data_dir)
            .run(PageCache::Warm)?;
        self.expect(&data_dir, self.dataset.manifest.compacted_hash)
            .await
            .context("the compacted backup")?;
        remove(&data_dir)?;
        remove(&home)?;
        Ok(median(&costs))
    }

    /// Measures `verify` of a restored directory no etcd has touched yet.
    pub(super) fn verify(&self, restored: &Restored) -> anyhow::Result<Verified> {
        let ours = Program::new(self.restorer, self.scratch)
            .args(["verify", "--output", "json"])
            .arg_pair("--data-dir", &restored.data_dir);
        let etcdutl = Program::new(&ETCD.directory().join("etcdutl"), self.scratch)
            .args(["snapshot", "status"])
            .args([database(&restored.data_dir)]);
        let mut costs = (Vec::new(), Vec::new());
        for _ in 0..self.runs {
            costs.0.push(self.once(&ours)?);
            costs.1.push(self.once(&etcdutl)?);
        }
        Ok(Verified {
            ours: median(&costs.0),
            etcdutl: median(&costs.1),
        })
    }

    /// Fails unless a real etcd finds the expected history in the directory.
    pub(super) async fn expect(&self, data_dir: &Path, expected: Hash) -> anyhow::Result<()> {
        let etcd = Etcd::start(ETCD, options(data_dir)).await;
        self.dataset.expect(&etcd, expected).await
    }

    fn restore_program(&self, home: &Path, data_dir: &Path) -> Program {
        self.verb("restore", home).arg_pair("--data-dir", data_dir)
    }

    fn verb(&self, verb: &str, home: &Path) -> Program {
        Program::new(self.restorer, home)
            .args([verb, "--output", "json", "--storage-provider", "Local"])
            .args(["--store-container", BUCKET, "--store-prefix", PREFIX])
    }

    fn once(&self, program: &Program) -> anyhow::Result<Cost> {
        let (cost, _) = program.run(self.page_cache)?;
        let peak = cost.peak_bytes.map_or_else(String::new, megabytes);
        eprintln!("bench:   {:.2} s, {peak}", cost.seconds);
        Ok(cost)
    }
}

/// Where the database is below a data directory.
fn database(data_dir: &Path) -> PathBuf {
    data_dir.join("member/snap/db")
}
