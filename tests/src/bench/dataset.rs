//! The backup that is measured: created once by a real etcd, kept between runs.
//!
//! ```text
//! <cache>/bench/<scale>-<hash of its parameters>/
//!     manifest.json               facts reported by etcd; written last
//!     bucket/etcd-main/v2/…       one full snapshot and its deltas
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use mainstay_ids::Revision;
use mainstay_testkit::recorder::RecorderCompression;
use mainstay_testkit::{EtcdOptions, EtcdRelease, EtcdServer, KeyValueHash, Recorder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::load::{BenchWriters, DatasetShape};

/// The etcd that creates the data and that everything is compared with.
pub(super) const ETCD_RELEASE: EtcdRelease = EtcdRelease::NEWEST;
/// The container of the backup: a directory below the dataset.
pub(super) const BUCKET: &str = "bucket";
/// The prefix of the backup.
pub(super) const PREFIX: &str = "etcd-main";
/// Suffix of a directory whose data is incomplete.
pub(super) const UNFINISHED_SUFFIX: &str = ".making";
/// Increase it to invalidate existing data.
const GENERATION: u32 = 1;

/// Facts reported by the etcd that created the data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Parameters of the data.
    pub(super) shape: DatasetShape,
    /// Version of the etcd.
    pub(super) etcd: String,
    /// The revision of the full snapshot.
    pub(super) base_revision: i64,
    /// The revision of the last delta.
    pub(super) last_revision: i64,
    /// `HashKV` at the last revision.
    pub(super) hash: ManifestHash,
    /// `HashKV` at the last revision, after a physical compaction at it.
    pub(super) compacted_hash: ManifestHash,
}

/// A `HashKV` response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ManifestHash {
    /// The hash.
    pub(super) hash: u32,
    /// The compact revision it was computed with.
    pub(super) compact_revision: Option<i64>,
}

impl From<KeyValueHash> for ManifestHash {
    fn from(answer: KeyValueHash) -> Self {
        let compact_revision = answer.compact_revision.map(|revision| revision.0);
        Self {
            hash: answer.hash,
            compact_revision,
        }
    }
}

/// A backup on disk and its manifest.
#[derive(Clone, Debug)]
pub(super) struct Dataset {
    /// The directory, also the home directory of programs that read the bucket.
    pub(super) dir: PathBuf,
    /// The manifest.
    pub(super) manifest: Manifest,
    /// The full snapshot.
    pub(super) base: PathBuf,
    /// The deltas in order.
    pub(super) deltas: Vec<PathBuf>,
}

impl Dataset {
    /// Returns the backup of this size; creates it if it does not exist.
    pub(super) async fn open_or_create(data: &Path, scale: u32) -> anyhow::Result<Self> {
        let shape = DatasetShape::at_scale(scale);
        let etcd = read_etcd_version()?;
        let hash = Sha256::digest(format!("{GENERATION} {etcd} {shape:?}"));
        let name = format!("{scale}-{}", &hex::encode(hash)[..12]);
        let home = data.join(&name);
        if !home.join("manifest.json").exists() {
            eprintln!("bench: creating the data of scale {scale}, kept for later runs");
            let making = data.join(format!("{name}{UNFINISHED_SUFFIX}"));
            remove_dir(&making)?;
            fs::create_dir_all(&making).context("failed to create a directory for the data")?;
            create_dataset(&making, shape, etcd).await?;
            remove_dir(&home)?;
            fs::rename(&making, &home).context("failed to move the data into place")?;
        }
        Self::open(home)
    }

    fn open(dir: PathBuf) -> anyhow::Result<Self> {
        let manifest =
            fs::read(dir.join("manifest.json")).context("failed to read the manifest")?;
        let manifest: Manifest =
            serde_json::from_slice(&manifest).context("failed to read the manifest")?;
        let folder = dir.join(BUCKET).join(PREFIX).join("v2");
        let mut objects = Vec::new();
        for entry in fs::read_dir(&folder).context("failed to list the backup")? {
            objects.push(entry.context("failed to list the backup")?.path());
        }
        objects.sort(); // names are zero-padded: the full snapshot first, then deltas by revision
        let (base, deltas) = objects.split_first().context("backup is empty")?;
        ensure!(
            deltas.len() == manifest.shape.deltas,
            "{} deltas",
            deltas.len()
        );
        Ok(Self {
            base: base.clone(),
            deltas: deltas.to_vec(),
            dir,
            manifest,
        })
    }

    /// All objects, the full snapshot first.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&self.base)
            .chain(&self.deltas)
            .map(PathBuf::as_path)
    }

    /// Stored size of all objects in bytes.
    pub(super) fn stored_bytes(&self) -> anyhow::Result<u64> {
        self.objects().map(file_length).sum()
    }

    /// Hard-links the bucket into another home, for programs that add objects.
    pub(super) fn link_into(&self, home: &Path) -> anyhow::Result<()> {
        let folder = home.join(BUCKET).join(PREFIX).join("v2");
        fs::create_dir_all(&folder).context("failed to create a bucket directory")?;
        for object in self.objects() {
            let name = object.file_name().context("object has no file name")?;
            fs::hard_link(object, folder.join(name)).context("failed to link an object")?;
        }
        Ok(())
    }

    /// Fails unless this etcd has the history of the data.
    pub(super) async fn verify_history(
        &self,
        etcd: &EtcdServer,
        expected: ManifestHash,
    ) -> anyhow::Result<()> {
        let last = Revision(self.manifest.last_revision);
        let reached = etcd.revision().await;
        ensure!(
            reached == last,
            "etcd is at revision {reached}, expected {last}"
        );
        let hash = ManifestHash::from(etcd.hash_kv(last).await);
        ensure!(
            hash == expected,
            "HashKV is {hash:?}, expected {expected:?}"
        );
        Ok(())
    }
}

/// Size of a file in bytes.
pub(super) fn file_length(path: &Path) -> anyhow::Result<u64> {
    Ok(fs::metadata(path)
        .with_context(|| format!("failed to read the size of {}", path.display()))?
        .len())
}

/// Removes a directory if it exists.
pub(super) fn remove_dir(path: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("failed to remove {}", path.display())),
    }
}

/// Options of every etcd of the benchmarks.
pub(super) fn etcd_options(data_dir: &Path) -> EtcdOptions {
    EtcdOptions::new()
        .data_dir(data_dir)
        .quota_bytes(64 << 30)
        .snapshot_count(10_000)
}

async fn create_dataset(home: &Path, shape: DatasetShape, version: String) -> anyhow::Result<()> {
    let started = Instant::now();
    let data_dir = home.join("source");
    let mut etcd = EtcdServer::start(ETCD_RELEASE, etcd_options(&data_dir)).await;
    let mut writers = BenchWriters::connect(&etcd, shape).await;
    writers.fill().await?;
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("bench: {} keys written after {seconds:.0} s", shape.keys);
    let mut recorder =
        Recorder::start(&etcd, &home.join(BUCKET), PREFIX, RecorderCompression::Gzip).await;
    let base_revision = recorder.last_revision();
    for delta in 0..shape.deltas {
        let until = |delta: usize| shape.writes * delta / shape.deltas;
        writers.write(until(delta + 1) - until(delta)).await?;
        recorder
            .write_delta(&etcd)
            .await
            .context("delta has no events")?;
    }
    let last = recorder.last_revision();
    let written = i64::try_from(shape.writes)?;
    ensure!(
        last.0 - base_revision.0 == written,
        "number of writes and revisions differ at {last}"
    );
    let hash = etcd.hash_kv(last).await.into();
    etcd.compact(last).await;
    // A running etcd returns the hash cached at its compaction; a new process computes it.
    drop((recorder, writers));
    etcd.stop().await;
    etcd.restart().await;
    let compacted_hash = ManifestHash::from(etcd.hash_kv(last).await);
    ensure!(
        compacted_hash.compact_revision == Some(last.0),
        "etcd did not compact at {last}"
    );
    drop(etcd);
    remove_dir(&data_dir)?;
    let manifest = Manifest {
        shape,
        etcd: version,
        base_revision: base_revision.0,
        last_revision: last.0,
        hash,
        compacted_hash,
    };
    let manifest = serde_json::to_vec_pretty(&manifest)?;
    fs::write(home.join("manifest.json"), manifest).context("failed to write the manifest")?;
    eprintln!(
        "bench: data created after {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The version of the etcd that wrote the dataset.
pub(super) fn read_etcd_version() -> anyhow::Result<String> {
    let told = Command::new(ETCD_RELEASE.directory().join("etcd"))
        .arg("--version")
        .output();
    let told = told.context("failed to run etcd --version")?.stdout;
    let told = String::from_utf8_lossy(&told).into_owned();
    let version = told
        .lines()
        .find_map(|line| line.strip_prefix("etcd Version: "));
    Ok(version
        .context("no version in the output of etcd --version")?
        .trim()
        .to_owned())
}
