//! Measures the restorer as a user runs it: a process that reads a bucket of provider `Local`.
//!
//! A real etcd starts on the result and must report the `HashKV` of the source.

use std::path::{Path, PathBuf};

use anyhow::Context;
use mainstay_testkit::EtcdServer;

use super::args::PageCache;
use super::dataset::{
    BUCKET, Dataset, ETCD_RELEASE, ManifestHash, PREFIX, etcd_options, file_length, remove_dir,
};
use super::targets::format_megabytes;
use super::timed::{Cost, TimedProgram, median_cost};

/// The measured program and its parameters.
#[derive(Clone, Debug)]
pub(super) struct RestorerBench<'a> {
    /// The program.
    pub(super) restorer: &'a Path,
    /// The backup.
    pub(super) dataset: &'a Dataset,
    /// A directory for all results.
    pub(super) scratch: &'a Path,
    /// Number of runs of each program.
    pub(super) runs: usize,
    /// State of the page cache before each run.
    pub(super) page_cache: PageCache,
}

/// A restored data directory.
#[derive(Clone, Debug)]
pub(super) struct RestoredDir {
    /// Cost of the restore.
    pub(super) cost: Cost,
    /// Path of the directory.
    pub(super) data_dir: PathBuf,
    /// Size of its database in bytes.
    pub(super) database_bytes: u64,
}

/// `verify` and the tool it is compared with, on the same database.
#[derive(Clone, Copy, Debug)]
pub(super) struct VerifyCosts {
    /// `mainstay-restorer verify --data-dir`
    pub(super) restorer: Cost,
    /// `etcdutl snapshot status`
    pub(super) etcdutl: Cost,
}

impl RestorerBench<'_> {
    /// Measures `restore` once and keeps the result.
    pub(super) fn restore(&self) -> anyhow::Result<RestoredDir> {
        let data_dir = self.scratch.join("restored");
        remove_dir(&data_dir)?;
        let cost = self.run_once(&self.restore_command(&self.dataset.dir, &data_dir))?;
        let database_bytes = file_length(&database_path(&data_dir))?;
        Ok(RestoredDir {
            cost,
            data_dir,
            database_bytes,
        })
    }

    /// Measures `compact`, and fails unless the result restores to the expected history.
    pub(super) async fn compact(&self) -> anyhow::Result<Cost> {
        let home = self.scratch.join("compacted");
        let program = self
            .verb_command("compact", &home)
            .arg_pair("--scratch-dir", &self.scratch.join("compact-scratch"));
        let mut costs = Vec::with_capacity(self.runs);
        for _ in 0..self.runs {
            remove_dir(&home)?;
            self.dataset.link_into(&home)?;
            costs.push(self.run_once(&program)?);
        }
        let data_dir = self.scratch.join("from-compacted");
        self.restore_command(&home, &data_dir)
            .run(PageCache::Warm)?;
        self.verify_hash(&data_dir, self.dataset.manifest.compacted_hash)
            .await
            .context("compacted backup")?;
        remove_dir(&data_dir)?;
        remove_dir(&home)?;
        Ok(median_cost(&costs))
    }

    /// Measures `verify` of a restored directory on which no etcd has run yet.
    pub(super) fn verify(&self, restored: &RestoredDir) -> anyhow::Result<VerifyCosts> {
        let ours = TimedProgram::new(self.restorer, self.scratch)
            .args(["verify", "--output", "json"])
            .arg_pair("--data-dir", &restored.data_dir);
        let etcdutl = TimedProgram::new(&ETCD_RELEASE.directory().join("etcdutl"), self.scratch)
            .args(["snapshot", "status"])
            .args([database_path(&restored.data_dir)]);
        let mut costs = (Vec::new(), Vec::new());
        for _ in 0..self.runs {
            costs.0.push(self.run_once(&ours)?);
            costs.1.push(self.run_once(&etcdutl)?);
        }
        Ok(VerifyCosts {
            restorer: median_cost(&costs.0),
            etcdutl: median_cost(&costs.1),
        })
    }

    /// Fails unless a real etcd finds the expected history in the directory.
    pub(super) async fn verify_hash(
        &self,
        data_dir: &Path,
        expected: ManifestHash,
    ) -> anyhow::Result<()> {
        let etcd = EtcdServer::start(ETCD_RELEASE, etcd_options(data_dir)).await;
        self.dataset.verify_history(&etcd, expected).await
    }

    fn restore_command(&self, home: &Path, data_dir: &Path) -> TimedProgram {
        self.verb_command("restore", home)
            .arg_pair("--data-dir", data_dir)
    }

    fn verb_command(&self, verb: &str, home: &Path) -> TimedProgram {
        TimedProgram::new(self.restorer, home)
            .args([verb, "--output", "json", "--storage-provider", "Local"])
            .args(["--store-container", BUCKET, "--store-prefix", PREFIX])
    }

    fn run_once(&self, program: &TimedProgram) -> anyhow::Result<Cost> {
        let (cost, _) = program.run(self.page_cache)?;
        let peak = cost.peak_bytes.map_or_else(String::new, format_megabytes);
        eprintln!("bench:   {:.2} s, {peak}", cost.seconds);
        Ok(cost)
    }
}

/// Path of the database in a data directory.
fn database_path(data_dir: &Path) -> PathBuf {
    data_dir.join("member/snap/db")
}
