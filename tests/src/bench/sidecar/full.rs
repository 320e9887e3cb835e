//! Full snapshots of a database, by the sidecar and by etcd's own tool.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mainstay_testkit::{Etcd, SidecarProcess};
use tokio::time::sleep;

use super::super::args::PageCache;
use super::super::claims::megabytes;
use super::super::dataset::{ETCD, etcd_version, length, options, remove};
use super::super::load::{Shape, Writers};
use super::super::timed::{Cost, Program, median, settle};
use super::super::usage;
use super::super::{WORK, dataset::UNFINISHED};
use super::beside;

/// Longer than any first snapshot takes.
const PATIENCE: Duration = Duration::from_mins(10);
const POLL: Duration = Duration::from_millis(100);
/// A sidecar rests that used less than [`AT_REST`] seconds of a processor in this time.
const REST: Duration = Duration::from_secs(3);
const AT_REST: f64 = 0.1;

/// Full snapshots of one database.
#[derive(Clone, Debug)]
pub(super) struct Fulls {
    pub(super) keys: usize,
    pub(super) database_bytes: u64,
    pub(super) gzip: Taken,
    pub(super) zstd: Taken,
    /// `etcdctl snapshot save`
    pub(super) save: Cost,
    /// `gzip -1` of what it saved.
    pub(super) squeeze: Cost,
}

/// Snapshots of one compression.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) cost: Cost,
    pub(super) stored_bytes: u64,
}

/// Takes snapshots of a database of this many keys, in turns with etcd's tool.
pub(super) async fn measure(data: &Path, keys: usize, runs: usize) -> anyhow::Result<Fulls> {
    let home = provide(data, keys).await?;
    let mut etcd = Etcd::start(ETCD, options(&home)).await;
    let scratch = tempfile::Builder::new().prefix(WORK).tempdir_in(data);
    let scratch = scratch.context("make a scratch directory")?;
    let at = |name: &str| scratch.path().join(name);
    let gzip = Taker::start(&etcd, &at("gzip"), "gzip").await?;
    let zstd = Taker::start(&etcd, &at("zstd"), "zstd").await?;
    let mut taken = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for run in 0..runs {
        taken.0.push(gzip.take(&etcd).await?);
        gzip.rest().await?;
        taken.1.push(zstd.take(&etcd).await?);
        zstd.rest().await?;
        let (save, squeeze) = baseline(&etcd, &scratch.path().join(format!("saved-{run}.db")))?;
        taken.2.push(save);
        taken.3.push(squeeze);
    }
    let fulls = Fulls {
        keys,
        database_bytes: length(&home.join("member/snap/db"))?,
        gzip: gzip.end(&taken.0)?,
        zstd: zstd.end(&taken.1)?,
        save: median(&taken.2),
        squeeze: median(&taken.3),
    };
    etcd.stop().await;
    Ok(fulls)
}

/// A sidecar that has taken its first snapshot.
struct Taker {
    sidecar: SidecarProcess,
    home: PathBuf,
}

impl Taker {
    async fn start(etcd: &Etcd, home: &Path, compression: &str) -> anyhow::Result<Self> {
        fs::create_dir_all(home).context("make a home for a sidecar")?;
        let text = home.to_str().context("a path that is text")?;
        let options = beside(etcd.client_url(), text)
            .flag("compress-snapshots", "true")
            .flag("compression-policy", compression);
        let taker = Self {
            sidecar: SidecarProcess::start(options).await,
            home: home.to_owned(),
        };
        let deadline = Instant::now() + PATIENCE;
        while taker.newest().is_none() {
            ensure!(Instant::now() < deadline, "no first snapshot");
            sleep(POLL).await;
        }
        taker.rest().await?;
        Ok(taker)
    }

    /// Waits until the sidecar has looked at what it stored: nobody is measured beside that.
    async fn rest(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut used = usage::cpu_seconds(self.sidecar.id())?;
        loop {
            sleep(REST).await;
            let now = usage::cpu_seconds(self.sidecar.id())?;
            if now - used < AT_REST {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the sidecar never rests");
            used = now;
        }
    }

    /// One snapshot on demand, of a revision that has none yet.
    async fn take(&self, etcd: &Etcd) -> anyhow::Result<Cost> {
        let mut kv = etcd.client().await.kv_client();
        kv.put("bench", self.home.to_string_lossy().as_ref(), None)
            .await
            .context("write a key")?;
        let before = self.newest();
        settle(PageCache::Warm)?;
        let used = usage::cpu_seconds(self.sidecar.id())?;
        let started = Instant::now();
        let (status, answer) = self.sidecar.ask("/snapshot/full").await;
        let seconds = started.elapsed().as_secs_f64();
        ensure!(status == 200, "the sidecar answered {status}: {answer}");
        ensure!(self.newest() != before, "no snapshot was taken");
        let cost = Cost {
            seconds,
            cpu_seconds: usage::cpu_seconds(self.sidecar.id())? - used,
            peak_bytes: Some(usage::peak_bytes(self.sidecar.id())?),
        };
        eprintln!(
            "bench:   {seconds:.2} s, {}",
            cost.peak_bytes.map_or_else(String::new, megabytes)
        );
        Ok(cost)
    }

    fn end(mut self, costs: &[Cost]) -> anyhow::Result<Taken> {
        let newest = self.newest().context("no snapshot")?;
        let stored_bytes = length(&newest)?;
        self.sidecar.kill();
        Ok(Taken {
            cost: median(costs),
            stored_bytes,
        })
    }

    fn newest(&self) -> Option<PathBuf> {
        let folder = self.home.join(super::BUCKET).join(super::PREFIX).join("v2");
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

/// etcd's own tool, then the compression the peer's default is as fast as. Like the sidecar, they write a new file.
fn baseline(etcd: &Etcd, saved: &Path) -> anyhow::Result<(Cost, Cost)> {
    let home = saved.parent().context("a file in a directory")?;
    let endpoints = format!("--endpoints={}", etcd.client_url());
    let (save, _) = Program::new(&ETCD.directory().join("etcdctl"), home)
        .args([endpoints.as_str(), "snapshot", "save"])
        .args([saved])
        .run(PageCache::Warm)?;
    let (squeeze, _) = Program::new(Path::new("/usr/bin/gzip"), home)
        .args(["-1", "--keep"])
        .args([saved])
        .run(PageCache::Warm)?;
    eprintln!(
        "bench:   etcdctl {:.2} s, gzip {:.2} s",
        save.seconds, squeeze.seconds
    );
    Ok((save, squeeze))
}

/// The data directory of an etcd that holds this many keys, made now if there is none.
async fn provide(data: &Path, keys: usize) -> anyhow::Result<PathBuf> {
    let name = format!("member-{keys}-{}", etcd_version()?);
    let home = data.join(&name);
    if home.exists() {
        return Ok(home);
    }
    eprintln!("bench: writing {keys} keys, kept for later runs");
    let making = data.join(format!("{name}{UNFINISHED}"));
    remove(&making)?;
    let mut etcd = Etcd::start(ETCD, options(&making)).await;
    let shape = Shape {
        keys,
        ..Shape::of_scale(1)
    };
    Writers::connect(&etcd, shape).await.fill().await?;
    etcd.stop().await;
    fs::rename(&making, &home).context("keep the data")?;
    Ok(home)
}
