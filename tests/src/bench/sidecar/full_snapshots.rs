//! Measures full snapshots of a database, by the sidecar and by etcd's own tool.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mainstay_testkit::{EtcdServer, SidecarProcess};
use tokio::time::sleep;

use super::super::args::PageCache;
use super::super::dataset::{
    ETCD_RELEASE, etcd_options, file_length, read_etcd_version, remove_dir,
};
use super::super::load::{BenchWriters, DatasetShape};
use super::super::targets::format_megabytes;
use super::super::timed::{Cost, TimedProgram, median_cost, settle_disk};
use super::super::usage;
use super::super::{WORK_DIR_PREFIX, dataset::UNFINISHED_SUFFIX};
use super::build_sidecar_options;

/// Timeout of the first snapshot.
const TIMEOUT: Duration = Duration::from_mins(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A sidecar is idle if it used less than [`IDLE_CPU_SECONDS`] of CPU time in this period.
const IDLE_WINDOW: Duration = Duration::from_secs(3);
const IDLE_CPU_SECONDS: f64 = 0.1;

/// Measurements of one database.
#[derive(Clone, Debug)]
pub(super) struct FullSnapshotFigures {
    pub(super) keys: usize,
    pub(super) database_bytes: u64,
    pub(super) gzip: SnapshotCost,
    pub(super) zstd: SnapshotCost,
    /// `etcdctl snapshot save`
    pub(super) save: Cost,
    /// `gzip -1` of what it saved.
    pub(super) compress: Cost,
}

/// Snapshots of one compression.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotCost {
    pub(super) cost: Cost,
    pub(super) stored_bytes: u64,
}

/// Takes snapshots of a database of this many keys, alternately with etcd's tool.
pub(super) async fn measure(
    data: &Path,
    keys: usize,
    runs: usize,
) -> anyhow::Result<FullSnapshotFigures> {
    let home = open_or_create_member(data, keys).await?;
    let mut etcd = EtcdServer::start(ETCD_RELEASE, etcd_options(&home)).await;
    let scratch = tempfile::Builder::new()
        .prefix(WORK_DIR_PREFIX)
        .tempdir_in(data);
    let scratch = scratch.context("failed to create a scratch directory")?;
    let at = |name: &str| scratch.path().join(name);
    let gzip = SnapshotSidecar::start(&etcd, &at("gzip"), "gzip").await?;
    let zstd = SnapshotSidecar::start(&etcd, &at("zstd"), "zstd").await?;
    let mut snapshot_revisions = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs {
        snapshot_revisions.0.push(gzip.take_snapshot(&etcd).await?);
        gzip.wait_until_idle().await?;
        snapshot_revisions.1.push(zstd.take_snapshot(&etcd).await?);
        zstd.wait_until_idle().await?;
        let (save, squeeze) =
            measure_baseline(&etcd, &scratch.path().join(format!("saved-{run}.db")))?;
        snapshot_revisions.2.push(save);
        snapshot_revisions.3.push(squeeze);
    }
    let fulls = FullSnapshotFigures {
        keys,
        database_bytes: file_length(&home.join("member/snap/db"))?,
        gzip: gzip.finish(&snapshot_revisions.0)?,
        zstd: zstd.finish(&snapshot_revisions.1)?,
        save: median_cost(&snapshot_revisions.2),
        compress: median_cost(&snapshot_revisions.3),
    };
    etcd.stop().await;
    Ok(fulls)
}

/// A sidecar that has taken its first snapshot.
struct SnapshotSidecar {
    sidecar: SidecarProcess,
    dir: PathBuf,
}

impl SnapshotSidecar {
    async fn start(etcd: &EtcdServer, home: &Path, compression: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(home).context("failed to create a home directory for a sidecar")?;
        let text = home.to_str().context("path is not valid UTF-8")?;
        let options = build_sidecar_options(etcd.client_url(), text)
            .flag("compress-snapshots", "true")
            .flag("compression-policy", compression);
        let taker = Self {
            sidecar: SidecarProcess::start(options).await,
            dir: home.to_owned(),
        };
        let deadline = Instant::now() + TIMEOUT;
        while taker.newest_full().is_none() {
            ensure!(
                Instant::now() < deadline,
                "sidecar took no first snapshot in time"
            );
            sleep(POLL_INTERVAL).await;
        }
        taker.wait_until_idle().await?;
        Ok(taker)
    }

    /// Waits until the sidecar has verified what it stored, so that this does not distort other measurements.
    async fn wait_until_idle(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        let mut used = usage::cpu_seconds(self.sidecar.pid())?;
        loop {
            sleep(IDLE_WINDOW).await;
            let now = usage::cpu_seconds(self.sidecar.pid())?;
            if now - used < IDLE_CPU_SECONDS {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "sidecar does not become idle");
            used = now;
        }
    }

    /// Takes one on-demand snapshot after a new write.
    async fn take_snapshot(&self, etcd: &EtcdServer) -> anyhow::Result<Cost> {
        let mut kv = etcd.client().await.kv_client();
        kv.put("bench", self.dir.to_string_lossy().as_ref(), None)
            .await
            .context("failed to put a key")?;
        let before = self.newest_full();
        settle_disk(PageCache::Warm)?;
        let used = usage::cpu_seconds(self.sidecar.pid())?;
        let started = Instant::now();
        let (status, answer) = self.sidecar.request("/snapshot/full").await;
        let seconds = started.elapsed().as_secs_f64();
        ensure!(status == 200, "sidecar returned status {status}: {answer}");
        ensure!(self.newest_full() != before, "no snapshot was taken");
        let cost = Cost {
            seconds,
            cpu_seconds: usage::cpu_seconds(self.sidecar.pid())? - used,
            peak_bytes: Some(usage::peak_bytes(self.sidecar.pid())?),
        };
        eprintln!(
            "bench:   {seconds:.2} s, {}",
            cost.peak_bytes.map_or_else(String::new, format_megabytes)
        );
        Ok(cost)
    }

    fn finish(mut self, costs: &[Cost]) -> anyhow::Result<SnapshotCost> {
        let newest = self.newest_full().context("no snapshot in the store")?;
        let stored_bytes = file_length(&newest)?;
        self.sidecar.kill();
        Ok(SnapshotCost {
            cost: median_cost(costs),
            stored_bytes,
        })
    }

    fn newest_full(&self) -> Option<PathBuf> {
        let folder = self.dir.join(super::BUCKET).join(super::PREFIX).join("v2");
        let names = fs::read_dir(folder).ok()?.filter_map(Result::ok);
        names
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with("Full-"))
            })
            .max()
    }
}

/// Measures etcd's own tool, then gzip at the speed of etcd-backup-restore's default. Like the sidecar, both write a new file.
fn measure_baseline(etcd: &EtcdServer, saved: &Path) -> anyhow::Result<(Cost, Cost)> {
    let home = saved.parent().context("file has no parent directory")?;
    let endpoints = format!("--endpoints={}", etcd.client_url());
    let (save, _) = TimedProgram::new(&ETCD_RELEASE.directory().join("etcdctl"), home)
        .args([endpoints.as_str(), "snapshot", "save"])
        .args([saved])
        .run(PageCache::Warm)?;
    let (squeeze, _) = TimedProgram::new(Path::new("/usr/bin/gzip"), home)
        .args(["-1", "--keep"])
        .args([saved])
        .run(PageCache::Warm)?;
    eprintln!(
        "bench:   etcdctl {:.2} s, gzip {:.2} s",
        save.seconds, squeeze.seconds
    );
    Ok((save, squeeze))
}

/// The data directory of an etcd with this many keys; creates it if it does not exist.
async fn open_or_create_member(data: &Path, keys: usize) -> anyhow::Result<PathBuf> {
    let name = format!("member-{keys}-{}", read_etcd_version()?);
    let home = data.join(&name);
    if home.exists() {
        return Ok(home);
    }
    eprintln!("bench: writing {keys} keys, kept for later runs");
    let making = data.join(format!("{name}{UNFINISHED_SUFFIX}"));
    remove_dir(&making)?;
    let mut etcd = EtcdServer::start(ETCD_RELEASE, etcd_options(&making)).await;
    let shape = DatasetShape {
        keys,
        ..DatasetShape::at_scale(1)
    };
    BenchWriters::connect(&etcd, shape).await.fill().await?;
    etcd.stop().await;
    fs::rename(&making, &home).context("failed to move the data into place")?;
    Ok(home)
}
