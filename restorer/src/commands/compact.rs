//! `compact`: compacts a full snapshot and its deltas into a new full snapshot.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use jiff::SignedDuration;
use mainstay_archive::chain::{SnapshotChain, choose};
use mainstay_archive::compression::{Compression, EncoderOptions, StreamEncoder};
use mainstay_archive::full::FullWriter;
use mainstay_archive::layout::object_key;
use mainstay_archive::name::SnapshotName;
use mainstay_bbolt::Database;
use mainstay_ids::Revision;
use mainstay_mvcc::compact::{SurvivingRows, compact_into};
use mainstay_store::{StoreArgs, UploadOptions, UploadWriter};
use mainstay_telemetry::{ProgressReporter, format_bytes};
use mainstay_verdict::Verdict;
use serde::Serialize;

use crate::available_threads;
use crate::backup::{Backup, StoreObjectSource};
use crate::cli::CommandContext;
use crate::directory::{chain_bytes, sample_progress};
use crate::failure::CommandFailure;
use crate::failure::classification::{classify_database_error, classify_io_error};
use crate::outcome::CommandOutcome;
use crate::rebuild::{
    DatabaseFile, Durability, HashCheck, Meter, RebuildOptions, StopPoint, rebuild,
};
use crate::upstream::UpstreamRestoreArgs;

/// Read size for the new database, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Flags of `compact`.
#[derive(Debug, Args)]
#[command(
    long_about = "Compacts the newest full snapshot and the deltas after it into a new full snapshot, \
        compacted at the newest revision and named like any full snapshot of that revision.\n\n\
        Deletes nothing from the store; the retention of the sidecar does that. Can run while the sidecar \
        writes to the same backup. Needs scratch space of twice the size of the database.",
    after_help = "Example:\n  \
        mainstay-restorer compact --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main"
)]
pub struct CompactArgs {
    #[command(flatten)]
    pub store: StoreArgs,

    /// Directory for temporary databases [default: the temporary directory of the system]
    ///
    /// Needs twice the size of the database.
    #[arg(long, value_name = "DIR", env = "MAINSTAY_SCRATCH_DIR")]
    pub(crate) scratch_dir: Option<PathBuf>,

    /// Write a new full snapshot even if there are no deltas
    #[arg(long)]
    pub(crate) force: bool,

    /// TTL of a lease whose granted TTL is not in the backup
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        env = "MAINSTAY_DEFAULT_LEASE_TTL"
    )]
    pub(crate) default_lease_ttl: SignedDuration,

    #[command(flatten)]
    pub(crate) upstream: UpstreamCompactArgs,
    #[command(flatten)]
    pub(crate) upstream_restore: UpstreamRestoreArgs,
}

/// Flags of `etcd-backup-restore compact` without effect: no etcd runs that could be waited for, and the new snapshot
/// has no free pages to defragment.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct UpstreamCompactArgs {
    /// No effect
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) defragment: Option<String>,
    /// No effect
    #[arg(long, hide = true)]
    pub(crate) etcd_snapshot_timeout: Option<String>,
    /// No effect
    #[arg(long, hide = true)]
    pub(crate) etcd_defrag_timeout: Option<String>,
    /// Directory that etcd-backup-restore restores to; used as the scratch directory here
    #[arg(short, long, hide = true)]
    pub(crate) data_dir: Option<PathBuf>,
}

/// The result of a compaction.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CompactionReport {
    /// Name of the new full snapshot.
    pub(crate) snapshot: String,
    pub(crate) object_key: String,
    /// Newest revision of the new snapshot, at which it is compacted.
    pub(crate) revision: i64,
    /// Name of the full snapshot that was read.
    pub(crate) base: String,
    /// Number of deltas that were applied.
    pub(crate) deltas: usize,
    pub(crate) rows_kept: u64,
    /// Rows removed by the compaction.
    pub(crate) rows_dropped: u64,
    /// Stored size of the objects read.
    pub(crate) bytes_read: u64,
    /// Size of the new database before compression.
    pub(crate) database_bytes: u64,
    /// Stored size of the new object.
    pub(crate) bytes_written: u64,
    pub(crate) seconds: f64,
}

/// Compacts the backup.
pub(crate) async fn run(
    args: CompactArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let CompactArgs {
        store,
        scratch_dir,
        force,
        default_lease_ttl,
        upstream,
        upstream_restore: _,
    } = args;
    let backup = Backup::open(&store.into_config()?, &context.environment).await?;
    let request =
        mainstay_archive::chain::ChainRequest::new(mainstay_archive::chain::ChainTarget::Latest);
    let chain = choose(&backup.catalogue, &request)?;
    if chain.deltas.is_empty() && !force {
        let text = format!("nothing to compact: {} has no deltas", chain.base.name);
        let details = serde_json::json!({"base": chain.base.name.to_string()});
        return Ok(CommandOutcome::new(Verdict::Unchanged, text, &details));
    }
    // etcd-backup-restore compacts in --data-dir, so existing command lines have a volume there.
    let scratch = create_scratch_dir(scratch_dir.or(upstream.data_dir).as_deref())?;
    let meter = Arc::new(Meter::default());
    meter.add_total(chain_bytes(&chain));
    let job = CompactionRun {
        sources: backup.sources(&meter),
        backup,
        chain,
        options: RebuildOptions {
            stop: StopPoint::End,
            hash_check: HashCheck::Required,
            default_lease_seconds: default_lease_ttl.as_secs().max(1),
            threads: available_threads(),
        },
        meter: Arc::clone(&meter),
        created_at: context.now.as_second(),
        runtime: tokio::runtime::Handle::current(),
    };
    let progress = ProgressReporter::start("compact", move || sample_progress(&meter));
    let work = tokio::task::spawn_blocking(move || job.run(scratch.path()));
    let compaction = work
        .await
        .map_err(|error| CommandFailure::new(Verdict::Failed, &error))??;
    drop(progress);
    Ok(CommandOutcome::new(
        Verdict::Compacted,
        describe_compaction(&compaction),
        &compaction,
    ))
}

/// Creates a temporary directory that is deleted when dropped.
fn create_scratch_dir(parent: Option<&Path>) -> Result<tempfile::TempDir, CommandFailure> {
    let make = || match parent {
        Some(parent) => {
            std::fs::create_dir_all(parent)?;
            tempfile::Builder::new()
                .prefix("compact-")
                .tempdir_in(parent)
        }
        None => tempfile::Builder::new().prefix("compact-").tempdir(),
    };
    make().map_err(|error: io::Error| {
        CommandFailure::from_reason(
            Verdict::Disk,
            format!("failed to create a scratch directory: {error}"),
        )
        .with_next_step(
            "set --scratch-dir to a writable directory with twice the size of the database free",
        )
    })
}

fn describe_compaction(compaction: &CompactionReport) -> String {
    format!(
        "compacted {} and {} deltas into {} ({}, {} rows kept, {} dropped) in {:.1} s",
        compaction.base,
        compaction.deltas,
        compaction.snapshot,
        format_bytes(compaction.bytes_written),
        compaction.rows_kept,
        compaction.rows_dropped,
        compaction.seconds
    )
}

struct CompactionRun {
    backup: Backup,
    sources: StoreObjectSource,
    chain: SnapshotChain,
    options: RebuildOptions,
    meter: Arc<Meter>,
    created_at: i64,
    runtime: tokio::runtime::Handle,
}

impl CompactionRun {
    fn run(&self, scratch: &Path) -> Result<CompactionReport, CommandFailure> {
        let started = Instant::now();
        let (whole, revision) = self.rebuild_full_history(scratch)?;
        let database = Database::open(&whole).map_err(|error| database_failure(&error))?;
        let survivors = SurvivingRows::find(&database, revision)
            .map_err(|error| CommandFailure::new(Verdict::DamagedBackup, &error))?;
        let compacted = tempfile::tempfile_in(scratch).map_err(|error| disk_failure(&error))?;
        compact_into(
            &database,
            &survivors,
            revision,
            as_scratch_database(&compacted),
            &mut |_| {},
        )
        .map_err(|error| database_failure(&error))?;
        drop(whole); // frees its disk space before the upload
        let database_bytes = compacted
            .metadata()
            .map_err(|error| disk_failure(&error))?
            .len();
        let name = self.snapshot_name(revision);
        let key = object_key(self.backup.store.prefix(), &name);
        let bytes_written = self.upload(&compacted, &name, &key)?;
        let counts = survivors.counts();
        Ok(CompactionReport {
            snapshot: name.to_string(),
            object_key: key,
            revision: revision.0,
            base: self.chain.base.name.to_string(),
            deltas: self.chain.deltas.len(),
            rows_kept: counts.kept,
            rows_dropped: counts.dropped,
            bytes_read: chain_bytes(&self.chain),
            database_bytes,
            bytes_written,
            seconds: started.elapsed().as_secs_f64(),
        })
    }

    /// Rebuilds the chain with its whole history into an unnamed file.
    fn rebuild_full_history(&self, scratch: &Path) -> Result<(File, Revision), CommandFailure> {
        let file = tempfile::tempfile_in(scratch).map_err(|error| disk_failure(&error))?;
        let settings = (&self.options, &*self.meter);
        let rebuilt = rebuild(
            &self.chain,
            &self.sources,
            as_scratch_database(&file),
            scratch,
            settings,
        )?;
        Ok((file, rebuilt.revision))
    }

    /// Names the new snapshot like etcd-backup-restore does: compression of the newest delta, `.final` of the base.
    fn snapshot_name(&self, revision: Revision) -> SnapshotName {
        let newest = self
            .chain
            .deltas
            .last()
            .map_or(&self.chain.base, |link| &link.object);
        let mut name =
            SnapshotName::full(revision, self.created_at, newest.name.compression.clone());
        name.is_final = self.chain.base.name.is_final;
        name
    }

    fn upload(
        &self,
        database: &File,
        name: &SnapshotName,
        key: &str,
    ) -> Result<u64, CommandFailure> {
        // create_only: the sidecar may have uploaded a full snapshot of the same name.
        let upload = {
            let _inside = self.runtime.enter();
            self.backup
                .store
                .upload(key, UploadOptions::create_only())?
        };
        let mut writer = upload.into_writer();
        let sent = stream_snapshot(
            database,
            &name.compression,
            &mut writer,
            self.options.threads,
        );
        match sent {
            Ok(()) => Ok(writer.finish()?.size),
            Err(error) => {
                let _ = writer.abort(); // the first error is reported, not a failure to abort
                Err(CommandFailure::new(classify_io_error(&error), &error))
            }
        }
    }
}

/// Only the uploaded object must survive a crash, so the database is not synced.
fn as_scratch_database(file: &File) -> DatabaseFile<'_> {
    DatabaseFile {
        file,
        durability: Durability::Scratch,
    }
}

/// Streams the database, followed by its SHA-256, through the compression into the upload.
fn stream_snapshot(
    database: &File,
    compression: &Compression,
    writer: &mut UploadWriter,
    threads: std::num::NonZeroUsize,
) -> io::Result<()> {
    let options = EncoderOptions {
        threads,
        ..EncoderOptions::default()
    };
    let encoder = StreamEncoder::new(compression, writer, options).map_err(io::Error::other)?;
    let mut full = FullWriter::new(encoder);
    let mut reader = database;
    io::Seek::rewind(&mut reader)?;
    let mut chunk = vec![0u8; CHUNK_BYTES];
    loop {
        let count = reader.read(&mut chunk)?;
        let Some(bytes) = chunk.get(..count).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        full.write_all(bytes)?;
    }
    full.finish()?.finish()?;
    Ok(())
}

fn database_failure(error: &mainstay_bbolt::BboltError) -> CommandFailure {
    CommandFailure::new(classify_database_error(error), error)
}

fn disk_failure(error: &(dyn std::error::Error + 'static)) -> CommandFailure {
    CommandFailure::new(Verdict::Disk, error)
}
