//! `compact`: a full snapshot and its deltas folded into a new full snapshot.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use jiff::SignedDuration;
use mainstay_archive::chain::{Chain, choose};
use mainstay_archive::compression::{Compression, Encoder, EncoderOptions};
use mainstay_archive::layout::object_key;
use mainstay_archive::name::SnapshotName;
use mainstay_bbolt::Database;
use mainstay_ids::Revision;
use mainstay_mvcc::compact::{Survivors, compact_into};
use mainstay_store::{StoreArgs, UploadOptions, UploadWriter};
use mainstay_telemetry::{Progress, human_bytes};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::backup::{Backup, StoreSources};
use crate::cli::Context;
use crate::directory::{chain_bytes, sample};
use crate::failure::classes::{database_verdict, io_verdict};
use crate::failure::{Failure, Verdict};
use crate::outcome::Outcome;
use crate::peer::PeerRestoreArgs;
use crate::rebuild::{DatabaseFile, Durability, HashCheck, Meter, Options, Stop, rebuild};
use crate::threads;

/// Bytes read back from the new database at once.
const PIECE: usize = 1 << 20;

/// Flags of `compact`.
#[derive(Debug, Args)]
#[command(
    long_about = "Folds the newest full snapshot and the deltas behind it into a new full snapshot, \
        compacted at the newest revision, under the name a full snapshot of that revision has.\n\n\
        Nothing is removed from the store: the sidecar's retention does that. Runs beside a live \
        backup without disturbing it, and needs scratch space for the database, twice.",
    after_help = "Example:\n  \
        mainstay-restorer compact --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main"
)]
pub struct CompactArgs {
    /// The backup.
    #[command(flatten)]
    pub store: StoreArgs,

    /// Directory for the databases while they are worked on [default: the system's]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_SCRATCH_DIR")]
    pub scratch_dir: Option<PathBuf>,

    /// Make a new full snapshot even when there is no delta to fold in
    #[arg(long)]
    pub force: bool,

    /// Life of a lease whose granted life no object of the backup tells
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        env = "MAINSTAY_DEFAULT_LEASE_TTL"
    )]
    pub default_lease_ttl: SignedDuration,

    /// Flags of the peer.
    #[command(flatten)]
    pub peer: PeerCompactArgs,
    /// Flags of the peer.
    #[command(flatten)]
    pub peer_restore: PeerRestoreArgs,
}

/// Flags of the peer's `compact`, accepted and without effect: there is no etcd to wait for, and the
/// new snapshot never holds free pages.
#[derive(Clone, Debug, Default, Args)]
pub struct PeerCompactArgs {
    /// Without effect
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    pub defragment: Option<String>,
    /// Without effect
    #[arg(long, hide = true)]
    pub etcd_snapshot_timeout: Option<String>,
    /// Without effect
    #[arg(long, hide = true)]
    pub etcd_defrag_timeout: Option<String>,
    /// Where the peer restores to; used as the scratch directory here
    #[arg(short, long, hide = true)]
    pub data_dir: Option<PathBuf>,
}

/// What a compaction did.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Compaction {
    /// The new full snapshot.
    pub snapshot: String,
    /// Its object key.
    pub object_key: String,
    /// Its revision, and the one it is compacted at.
    pub revision: i64,
    /// The full snapshot it was made of.
    pub base: String,
    /// Deltas folded in.
    pub deltas: usize,
    /// Rows in the new snapshot.
    pub rows_kept: u64,
    /// Rows left out.
    pub rows_dropped: u64,
    /// Bytes of the objects read.
    pub bytes_read: u64,
    /// Bytes of the new database.
    pub database_bytes: u64,
    /// Bytes of the new object.
    pub bytes_written: u64,
    /// How long it took.
    pub seconds: f64,
}

/// Compacts.
pub async fn run(args: CompactArgs, context: &Context) -> Result<Outcome, Failure> {
    let CompactArgs {
        store,
        scratch_dir,
        force,
        default_lease_ttl,
        peer,
        peer_restore: _,
    } = args;
    let backup = Backup::open(&store.into_config()?, &context.environment).await?;
    let request = mainstay_archive::chain::Request::new(mainstay_archive::chain::Target::Latest);
    let chain = choose(&backup.catalogue, &request)?;
    if chain.deltas.is_empty() && !force {
        let text = format!(
            "{} has no deltas behind it: nothing to compact",
            chain.base.name
        );
        let details = serde_json::json!({"base": chain.base.name.to_string()});
        return Ok(Outcome::new(Verdict::Unchanged, text, &details));
    }
    let scratch = scratch(scratch_dir.or(peer.data_dir).as_deref())?;
    let meter = Arc::new(Meter::default());
    meter.expect(chain_bytes(&chain));
    let job = Job {
        sources: backup.sources(&meter),
        backup,
        chain,
        options: Options {
            stop: Stop::End,
            hash_check: HashCheck::Required,
            default_lease_seconds: default_lease_ttl.as_secs().max(1),
            threads: threads(),
        },
        meter: Arc::clone(&meter),
        created: context.now.as_second(),
        runtime: tokio::runtime::Handle::current(),
    };
    let progress = Progress::start("compact", move || sample(&meter));
    let work = tokio::task::spawn_blocking(move || job.run(scratch.path()));
    let compaction = work
        .await
        .map_err(|error| Failure::new(Verdict::Failed, &error))??;
    drop(progress);
    Ok(Outcome::new(
        Verdict::Compacted,
        describe(&compaction),
        &compaction,
    ))
}

/// A directory that goes away with everything in it.
fn scratch(parent: Option<&Path>) -> Result<tempfile::TempDir, Failure> {
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
        Failure::because(Verdict::Disk, format!("make a scratch directory: {error}"))
            .with_next_step("give --scratch-dir a directory with room for the database, twice")
    })
}

fn describe(compaction: &Compaction) -> String {
    format!(
        "folded {} and {} deltas into {} ({}, {} rows kept, {} dropped) in {:.1} s",
        compaction.base,
        compaction.deltas,
        compaction.snapshot,
        human_bytes(compaction.bytes_written),
        compaction.rows_kept,
        compaction.rows_dropped,
        compaction.seconds
    )
}

struct Job {
    backup: Backup,
    sources: StoreSources,
    chain: Chain,
    options: Options,
    meter: Arc<Meter>,
    created: i64,
    runtime: tokio::runtime::Handle,
}

impl Job {
    fn run(&self, scratch: &Path) -> Result<Compaction, Failure> {
        let started = Instant::now();
        let (whole, revision) = self.whole(scratch)?;
        let database = Database::open(&whole).map_err(|error| unsound(&error))?;
        let survivors = Survivors::find(&database, revision)
            .map_err(|error| Failure::new(Verdict::DamagedBackup, &error))?;
        let compacted = tempfile::tempfile_in(scratch).map_err(|error| disk(&error))?;
        compact_into(
            &database,
            &survivors,
            revision,
            on_scratch(&compacted),
            &mut |_| {},
        )
        .map_err(|error| unsound(&error))?;
        drop(whole); // its space is free again before the upload
        let database_bytes = compacted.metadata().map_err(|error| disk(&error))?.len();
        let name = self.name(revision);
        let key = object_key(self.backup.store.prefix(), &name);
        let bytes_written = self.upload(&compacted, &name, &key)?;
        let counts = survivors.counts();
        Ok(Compaction {
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

    /// The whole history in one unnamed file.
    fn whole(&self, scratch: &Path) -> Result<(File, Revision), Failure> {
        let file = tempfile::tempfile_in(scratch).map_err(|error| disk(&error))?;
        let settings = (&self.options, &*self.meter);
        let rebuilt = rebuild(
            &self.chain,
            &self.sources,
            on_scratch(&file),
            scratch,
            settings,
        )?;
        Ok((file, rebuilt.revision))
    }

    /// As the peer names it: compressed like the newest delta, final like the base.
    fn name(&self, revision: Revision) -> SnapshotName {
        let newest = self
            .chain
            .deltas
            .last()
            .map_or(&self.chain.base, |link| &link.object);
        let mut name = SnapshotName::full(revision, self.created, newest.name.compression.clone());
        name.is_final = self.chain.base.name.is_final;
        name
    }

    fn upload(&self, database: &File, name: &SnapshotName, key: &str) -> Result<u64, Failure> {
        let upload = {
            let _inside = self.runtime.enter();
            self.backup
                .store
                .upload(key, UploadOptions::create_only())?
        };
        let mut writer = upload.into_writer();
        let sent = send(
            database,
            &name.compression,
            &mut writer,
            self.options.threads,
        );
        match sent {
            Ok(()) => Ok(writer.finish()?.size),
            Err(error) => {
                let _ = writer.abort(); // the first error is the one to tell
                Err(Failure::new(io_verdict(&error), &error))
            }
        }
    }
}

/// Nothing here needs to survive a power cut but the object uploaded in the end.
fn on_scratch(file: &File) -> DatabaseFile<'_> {
    DatabaseFile {
        file,
        durability: Durability::Scratch,
    }
}

/// Streams the database and its hash through the compression into the upload.
fn send(
    database: &File,
    compression: &Compression,
    writer: &mut UploadWriter,
    threads: std::num::NonZeroUsize,
) -> io::Result<()> {
    let options = EncoderOptions {
        threads,
        ..EncoderOptions::default()
    };
    let mut encoder = Encoder::new(compression, writer, options).map_err(io::Error::other)?;
    let mut hash = Sha256::new();
    let mut reader = database;
    io::Seek::rewind(&mut reader)?;
    let mut piece = vec![0u8; PIECE];
    loop {
        let count = reader.read(&mut piece)?;
        let Some(bytes) = piece.get(..count).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        hash.update(bytes);
        encoder.write_all(bytes)?;
    }
    encoder.write_all(&hash.finalize())?;
    encoder.finish()?;
    Ok(())
}

fn unsound(error: &mainstay_bbolt::Error) -> Failure {
    Failure::new(database_verdict(error), error)
}

fn disk(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::new(Verdict::Disk, error)
}
