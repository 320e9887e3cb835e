//! `inspect`: what is in a data directory, a snapshot file or a backup.
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
use mainstay_mvcc::Facts;
use mainstay_mvcc::hash::{hash_kv, status_hash};
use mainstay_store::StoreArgs;

use self::keys::KeySpace;
use self::open::Opened;
use self::report::Report;
use crate::cli::Context;
use crate::failure::{Failure, Verdict};
use crate::outcome::Outcome;
use crate::target::{self, TargetArgs};

/// Flags of `inspect`.
#[derive(Debug, Args)]
#[command(
    long_about = "Tells what is in a data directory, a snapshot file or a backup: revision and hashes as a live \
        etcd would answer them, the pages of the database, keys by prefix and the largest of them, leases, \
        members, alarms, users.\n\n\
        Reads the whole database and checks its structure. A data directory that a running etcd uses is \
        refused. A backup is rebuilt in a scratch directory first.",
    after_help = "Examples:\n  \
        # what is in a data directory?\n  \
        mainstay-restorer inspect --data-dir /var/etcd/data/new.etcd\n\n  \
        # a snapshot of `etcdctl snapshot save`, or one taken out of a bucket\n  \
        mainstay-restorer inspect --snapshot Full-00000000-00009002-1565021494.gz\n\n  \
        # which kinds of objects filled the etcd of a Kubernetes cluster, an hour before?\n  \
        mainstay-restorer inspect --store-container etcd-backups --to-time 2026-01-31T11:00:00Z --prefix-depth 2\n\n  \
        # the HashKV of a revision, to compare with `etcdctl endpoint hashkv --rev`\n  \
        mainstay-restorer inspect --data-dir default.etcd --revision 4711 -o json | jq .hashKv"
)]
pub struct InspectArgs {
    /// Inspect this data directory
    #[arg(short, long, value_name = "DIR", conflicts_with = "snapshot")]
    pub data_dir: Option<PathBuf>,

    /// Inspect this snapshot or database file; compressed where its name says so
    #[arg(long, value_name = "FILE", env = "MAINSTAY_SNAPSHOT")]
    pub snapshot: Option<PathBuf>,

    /// Hash and count keys as they were at this revision [default: the newest]
    #[arg(long, value_name = "REVISION", value_parser = target::revision)]
    pub revision: Option<Revision>,

    /// Count keys by this many parts of their path, separated by /
    #[arg(
        long,
        value_name = "DEPTH",
        default_value_t = 2,
        env = "MAINSTAY_PREFIX_DEPTH"
    )]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=32))]
    pub prefix_depth: u8,

    /// Directory for the database of a backup while it is looked at [default: the system's]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_SCRATCH_DIR")]
    pub scratch_dir: Option<PathBuf>,

    /// The backup, when neither a directory nor a file is given.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Which state of the backup.
    #[command(flatten)]
    pub target: TargetArgs,
}

/// Inspects.
pub async fn run(args: InspectArgs, context: &Context) -> Result<Outcome, Failure> {
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
        (Some(directory), _) => blocking(move || open::directory(&directory)).await?,
        (None, Some(file)) => {
            let scratch = scratch.map(std::path::Path::to_path_buf);
            blocking(move || open::snapshot(&file, scratch.as_deref())).await?
        }
        (None, None) => open::backup(&store.into_config()?, &target, scratch, context).await?,
    };
    let view = View {
        revision,
        prefix_depth: usize::from(prefix_depth),
    };
    let report = blocking(move || view.of(&opened)).await?;
    Ok(Outcome::new(Verdict::Shown, report.to_string(), &report))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|error| Failure::new(Verdict::Failed, &error))?
}

/// What to look at.
#[derive(Clone, Copy, Debug)]
struct View {
    revision: Option<Revision>,
    prefix_depth: usize,
}

impl View {
    fn of(self, opened: &Opened) -> Result<Report, Failure> {
        let damaged = opened.damaged;
        let failed = |error: &(dyn std::error::Error + 'static)| {
            let error = Failure::new(damaged, error);
            Failure::because(damaged, format!("{}: {}", opened.place, error.reason()))
        };
        let database = Database::open(&opened.file).map_err(|error| failed(&error))?;
        let facts = Facts::read(&database).map_err(|error| failed(&error))?;
        self.refuse_unreadable(&facts)?;
        let walks = self.walk(&database);
        Report::new(
            opened,
            &database,
            &facts,
            walks.map_err(|error| failed(&*error))?,
        )
        .map_err(|error| failed(&error))
    }

    fn refuse_unreadable(self, facts: &Facts) -> Result<(), Failure> {
        let oldest = facts.compact_revision().unwrap_or(Revision::EMPTY);
        match self.revision {
            Some(asked) if asked > facts.revision || asked < oldest => Err(Failure::because(
                Verdict::Usage,
                format!(
                    "--revision {asked} cannot be looked at: the database has revisions {oldest} to {}",
                    facts.revision
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Four walks over the same file, at the same time.
    fn walk(self, database: &Database<&File>) -> Result<Walks, Box<dyn std::error::Error + Send>> {
        fn boxed<E: std::error::Error + Send + 'static>(
            error: E,
        ) -> Box<dyn std::error::Error + Send> {
            Box::new(error)
        }
        thread::scope(|scope| {
            let hash = scope.spawn(|| hash_kv(database, self.revision).map_err(boxed));
            let status = scope.spawn(|| status_hash(database).map_err(boxed));
            let pages = scope.spawn(|| {
                check(database, |_, _| Ok::<_, mainstay_bbolt::Error>(())).map_err(boxed)
            });
            let keys = KeySpace::count(database, self.revision, self.prefix_depth).map_err(boxed);
            let ended = |_| boxed(open::InspectError::Thread);
            Ok(Walks {
                pages: pages.join().map_err(ended)??,
                hash: hash.join().map_err(ended)??,
                status: status.join().map_err(ended)??,
                keys: keys?,
            })
        })
    }
}

/// What the walks found.
struct Walks {
    pages: mainstay_bbolt::Checked,
    hash: mainstay_mvcc::hash::HashKv,
    status: mainstay_mvcc::hash::StatusHash,
    keys: KeySpace,
}
