//! `inspect`: shows the content of a data directory, a snapshot file or a backup.
//!
//! ```text
//! --data-dir ─ lock ─┐
//! --snapshot ─ hash ─┼─► database ─► facts, hashes, pages, keys, leases, members ─► report
//! backup ─ rebuild ──┘
//! ```

mod keys;
mod open;
mod report;
mod text;

use std::fs::File;
use std::path::PathBuf;
use std::thread;

use clap::Args;
use mainstay_bbolt::{Database, check};
use mainstay_ids::Revision;
use mainstay_mvcc::DatabaseStatus;
use mainstay_mvcc::hash::{compute_status_hash, hash_kv};
use mainstay_store::StoreArgs;
use mainstay_verdict::Verdict;

use self::keys::KeySpace;
use self::open::InspectedDatabase;
use self::report::InspectReport;
use crate::cli::CommandContext;
use crate::failure::CommandFailure;
use crate::outcome::CommandOutcome;
use crate::target::{self, TargetArgs};

/// Flags of `inspect`.
#[derive(Debug, Args)]
#[command(
    long_about = "Shows the content of a data directory, a snapshot file or a backup: revision and hashes as a live \
        etcd reports them, the pages of the database, keys by prefix, the largest keys, leases, members, \
        alarms and users.\n\n\
        Reads the whole database and checks its structure. Refuses a data directory that a running etcd \
        uses. Rebuilds a backup in a scratch directory first.",
    after_help = "Examples:\n  \
        # the content of a data directory\n  \
        mainstay-restorer inspect --data-dir /var/etcd/data/new.etcd\n\n  \
        # a snapshot of `etcdctl snapshot save`, or one downloaded from a bucket\n  \
        mainstay-restorer inspect --snapshot Full-00000000-00009002-1565021494.gz\n\n  \
        # which resources filled the etcd of a Kubernetes cluster at 11:00?\n  \
        mainstay-restorer inspect --store-container etcd-backups --to-time 2026-01-31T11:00:00Z --prefix-depth 2\n\n  \
        # the HashKV of a revision, to compare with `etcdctl endpoint hashkv --rev`\n  \
        mainstay-restorer inspect --data-dir default.etcd --revision 4711 -o json | jq .hashKv"
)]
pub struct InspectArgs {
    /// Inspect this data directory
    #[arg(short, long, value_name = "DIR", conflicts_with = "snapshot")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Inspect this snapshot or database file
    ///
    /// A file with the name of a compressed snapshot (Full-….gz) is decompressed first.
    #[arg(long, value_name = "FILE", env = "MAINSTAY_SNAPSHOT")]
    pub(crate) snapshot: Option<PathBuf>,

    /// Hash and count the keys at this revision [default: the newest]
    #[arg(long, value_name = "REVISION", value_parser = target::parse_revision)]
    pub(crate) revision: Option<Revision>,

    /// Group keys by this many parts of their path, separated by /
    #[arg(
        long,
        value_name = "DEPTH",
        default_value_t = 2,
        env = "MAINSTAY_PREFIX_DEPTH"
    )]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=32))]
    pub(crate) prefix_depth: u8,

    /// Directory for temporary databases [default: the temporary directory of the system]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_SCRATCH_DIR")]
    pub(crate) scratch_dir: Option<PathBuf>,

    /// The backup, used if neither a directory nor a file is given.
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Inspects a database.
pub(crate) async fn run(
    args: InspectArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let InspectArgs {
        data_dir,
        snapshot,
        revision,
        prefix_depth,
        scratch_dir,
        store,
        target,
    } = args;
    let scratch = scratch_dir.as_deref();
    let opened = match (data_dir, snapshot) {
        (Some(directory), _) => run_blocking(move || open::open_data_dir(&directory)).await?,
        (None, Some(file)) => {
            let scratch = scratch.map(std::path::Path::to_path_buf);
            run_blocking(move || open::open_snapshot(&file, scratch.as_deref())).await?
        }
        (None, None) => open::open_backup(&store.into_config()?, &target, scratch, context).await?,
    };
    let view = InspectOptions {
        revision,
        prefix_depth: usize::from(prefix_depth),
    };
    let report = run_blocking(move || view.inspect(&opened)).await?;
    Ok(CommandOutcome::new(
        Verdict::Shown,
        report.to_string(),
        &report,
    ))
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CommandFailure> + Send + 'static,
) -> Result<T, CommandFailure> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|error| CommandFailure::new(Verdict::Failed, &error))?
}

/// Selects what to report.
#[derive(Clone, Copy, Debug)]
struct InspectOptions {
    revision: Option<Revision>,
    prefix_depth: usize,
}

impl InspectOptions {
    fn inspect(self, opened: &InspectedDatabase) -> Result<InspectReport, CommandFailure> {
        let damaged = opened.damage_verdict;
        let failed = |error: &(dyn std::error::Error + 'static)| {
            let error = CommandFailure::new(damaged, error);
            CommandFailure::from_reason(
                damaged,
                format!("{}: {}", opened.description, error.reason()),
            )
        };
        let database = Database::open(&opened.file).map_err(|error| failed(&error))?;
        let facts = DatabaseStatus::read(&database).map_err(|error| failed(&error))?;
        self.refuse_unreadable_revision(&facts)?;
        let walks = self.scan_database(&database);
        InspectReport::new(
            opened,
            &database,
            &facts,
            walks.map_err(|error| failed(&*error))?,
        )
        .map_err(|error| failed(&error))
    }

    fn refuse_unreadable_revision(self, facts: &DatabaseStatus) -> Result<(), CommandFailure> {
        let oldest = facts.compact_revision().unwrap_or(Revision::EMPTY);
        match self.revision {
            // etcd answers such requests with "future revision" and "compacted" as well.
            Some(requested) if requested > facts.revision || requested < oldest => {
                Err(CommandFailure::from_reason(
                    Verdict::Usage,
                    format!(
                        "--revision {requested} is out of range: the database has revisions {oldest} to {}",
                        facts.revision
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Scans the file four times in parallel.
    fn scan_database(
        self,
        database: &Database<&File>,
    ) -> Result<ScanResults, Box<dyn std::error::Error + Send>> {
        fn boxed<E: std::error::Error + Send + 'static>(
            error: E,
        ) -> Box<dyn std::error::Error + Send> {
            Box::new(error)
        }
        thread::scope(|scope| {
            let hash = scope.spawn(|| hash_kv(database, self.revision).map_err(boxed));
            let status = scope.spawn(|| compute_status_hash(database).map_err(boxed));
            let pages = scope.spawn(|| {
                check(database, |_, _| Ok::<_, mainstay_bbolt::BboltError>(())).map_err(boxed)
            });
            let keys = KeySpace::scan(database, self.revision, self.prefix_depth).map_err(boxed);
            let ended = |_| boxed(open::InspectError::Thread);
            Ok(ScanResults {
                pages: pages.join().map_err(ended)??,
                hash_kv: hash.join().map_err(ended)??,
                status_hash: status.join().map_err(ended)??,
                keys: keys?,
            })
        })
    }
}

/// Results of the scans.
struct ScanResults {
    pages: mainstay_bbolt::CheckSummary,
    hash_kv: mainstay_mvcc::hash::HashKv,
    status_hash: mainstay_mvcc::hash::StatusHash,
    keys: KeySpace,
}
