//! The baseline: the same backup, restored through a running etcd, as etcd-backup-restore does.
//!
//! ```text
//! base ─ inflate ─► file ─ etcdutl snapshot restore ─► directory ─► etcd ◄─ one transaction
//!                                                                             per revision
//! ```
//!
//! As in etcd-backup-restore, etcd does not sync, transactions are sent one after the other, and deltas are inflated and
//! parsed in between, but by this project's faster code. The checks and the periodic compactions of etcd-backup-restore
//! are omitted, so the baseline is rather too fast.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use etcd_client::{KvClient, Txn, TxnOp};
use mainstay_archive::delta::{DeltaReader, EventKind};
use mainstay_ids::Revision;
use mainstay_testkit::recorder::RecorderCompression;
use mainstay_testkit::{EtcdServer, Recorder};

use super::args::PageCache;
use super::dataset::{Dataset, ETCD_RELEASE, etcd_options, remove_dir};
use super::floor;
use super::timed::{Cost, TimedProgram, median_cost, settle_disk};

/// The times of the baseline's steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replay {
    /// Seconds to inflate the base into a file.
    pub(super) inflate_seconds: f64,
    /// Cost of `etcdutl snapshot restore` of that file.
    pub(super) etcdutl: Cost,
    /// Seconds until etcd served the restored data.
    pub(super) start_seconds: f64,
    /// Number of revisions sent.
    pub(super) revisions_sent: usize,
    /// Seconds to send them.
    pub(super) send_seconds: f64,
    /// Number of revisions in the deltas.
    pub(super) revisions: usize,
    /// Seconds to compact, defragment and save the result; `None` unless all revisions were sent.
    pub(super) finish_seconds: Option<f64>,
}

impl Replay {
    /// Whether the time is extrapolated.
    pub(super) fn is_extrapolated(&self) -> bool {
        self.revisions_sent < self.revisions
    }

    /// Seconds for all revisions, extrapolated from those sent.
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub(super) fn all_revisions_seconds(&self) -> f64 {
        self.send_seconds * self.revisions as f64 / self.revisions_sent.max(1) as f64
    }

    /// Seconds of a restore.
    pub(super) fn restore_seconds(&self) -> f64 {
        let base = self.inflate_seconds + self.etcdutl.seconds;
        base + self.start_seconds + self.all_revisions_seconds()
    }

    /// Seconds of a compaction; without the last steps if they were not measured.
    pub(super) fn compact_seconds(&self) -> f64 {
        self.restore_seconds() + self.finish_seconds.unwrap_or(0.0)
    }
}

/// Measures the baseline with at most `most` revisions.
pub(super) async fn measure(
    dataset: &Dataset,
    scratch: &Path,
    most: usize,
    (runs, page_cache): (usize, PageCache),
) -> anyhow::Result<Replay> {
    let snapshot = scratch.join("base.db");
    let data_dir = scratch.join("replayed");
    settle_disk(page_cache)?;
    let inflate_seconds = inflate_base(&dataset.base, &snapshot)?;
    let etcdutl = restore_base(&snapshot, &data_dir, runs, page_cache)?;
    fs::remove_file(&snapshot).context("failed to remove the inflated full snapshot")?;
    let started = Instant::now();
    let etcd = EtcdServer::start(ETCD_RELEASE, etcd_options(&data_dir)).await;
    let start_seconds = started.elapsed().as_secs_f64();
    let reached = etcd.revision().await;
    let base = Revision(dataset.manifest.base_revision);
    ensure!(
        reached == base,
        "the restored full snapshot is at revision {reached}, expected {base}"
    );
    let started = Instant::now();
    let revisions_sent = replay_deltas(&dataset.deltas, &etcd, most).await?;
    let mut replay = Replay {
        inflate_seconds,
        etcdutl,
        start_seconds,
        revisions_sent,
        send_seconds: started.elapsed().as_secs_f64(),
        revisions: dataset.manifest.shape.writes,
        finish_seconds: None,
    };
    if !replay.is_extrapolated() {
        dataset
            .verify_history(&etcd, dataset.manifest.hash)
            .await
            .context("replayed etcd")?;
        replay.finish_seconds = Some(compact_and_save(dataset, &etcd, scratch).await?);
    }
    drop(etcd);
    remove_dir(&data_dir)?;
    Ok(replay)
}

fn inflate_base(base: &Path, snapshot: &Path) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut file =
        File::create(snapshot).context("failed to create a file for the full snapshot")?;
    floor::inflate(base, &mut file)?;
    Ok(started.elapsed().as_secs_f64())
}

fn restore_base(
    snapshot: &Path,
    data_dir: &Path,
    runs: usize,
    page_cache: PageCache,
) -> anyhow::Result<Cost> {
    let program = TimedProgram::new(&ETCD_RELEASE.directory().join("etcdutl"), data_dir)
        .args(["snapshot", "restore"])
        .args([snapshot, Path::new("--data-dir"), data_dir]);
    let mut costs = Vec::with_capacity(runs);
    for _ in 0..runs {
        remove_dir(data_dir)?;
        costs.push(program.run(page_cache)?.0);
    }
    Ok(median_cost(&costs))
}

/// Sends one transaction per revision, in order; returns their number.
async fn replay_deltas(
    deltas: &[PathBuf],
    etcd: &EtcdServer,
    most: usize,
) -> anyhow::Result<usize> {
    let mut kv = etcd.client().await.kv_client();
    let mut sent = 0;
    for delta in deltas {
        let mut reader = DeltaReader::new(floor::open_inflated(delta)?);
        let mut operations = Vec::new();
        let mut at = Revision(0);
        // Reading blocks this task: etcd-backup-restore is sequential as well.
        while let Some(event) = reader.next_event()? {
            let is_next = event.mod_revision != at;
            let revision = std::mem::replace(&mut at, event.mod_revision);
            let operation = match event.kind {
                EventKind::Put => TxnOp::put(event.key, event.value, None),
                EventKind::Delete => TxnOp::delete(event.key, None),
            };
            if is_next && !operations.is_empty() {
                commit_revision(&mut kv, revision, std::mem::take(&mut operations)).await?;
                sent += 1;
                if sent >= most {
                    return Ok(sent);
                }
            }
            operations.push(operation);
        }
        if !operations.is_empty() {
            commit_revision(&mut kv, at, operations).await?;
            sent += 1;
        }
        if sent >= most {
            return Ok(sent);
        }
    }
    Ok(sent)
}

async fn commit_revision(
    kv: &mut KvClient,
    revision: Revision,
    operations: Vec<TxnOp>,
) -> anyhow::Result<()> {
    let answer = kv.txn(Txn::new().and_then(operations)).await;
    let answer = answer.with_context(|| format!("failed to replay revision {revision}"))?;
    let made = answer
        .header()
        .context("response has no header")?
        .revision();
    ensure!(
        made == revision.0,
        "replaying revision {revision} resulted in revision {made}"
    );
    Ok(())
}

/// The steps of etcd-backup-restore's compaction after its restore.
async fn compact_and_save(
    dataset: &Dataset,
    etcd: &EtcdServer,
    scratch: &Path,
) -> anyhow::Result<f64> {
    let started = Instant::now();
    etcd.compact(Revision(dataset.manifest.last_revision)).await;
    etcd.client()
        .await
        .defragment()
        .await
        .context("failed to defragment the replayed etcd")?;
    let bucket = scratch.join("folded");
    drop(Recorder::start(etcd, &bucket, "compacted", RecorderCompression::Gzip).await);
    let seconds = started.elapsed().as_secs_f64();
    remove_dir(&bucket)?;
    Ok(seconds)
}
