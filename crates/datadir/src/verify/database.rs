//! The database: its meta pages, what it says in a handful of pages, and the walk over all of it.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use mainstay_bbolt::{Database, Error as PageError, Meta, ReadAt as _, check};
use mainstay_ids::{LeaseId, PageId, Revision};
use mainstay_mvcc::{
    Facts, FactsError, History, HistorySummary, KeyValue, RevisionKey, RowFault, Warning as Odd,
    schema, small_bucket,
};

use super::damage;
use super::entries::SmallBuckets;
use super::findings::{Findings, Stop};
use super::read_ahead;
use super::report::{FaultKind, WarningKind, sentence};

/// A database of which a few pages were read.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) path: PathBuf,
    /// None for a file of no bytes, which bbolt fills at the next start.
    database: Option<Database<File>>,
    pub(super) bytes: u64,
    pub(super) facts: Facts,
    pub(super) small: SmallBuckets,
}

/// What a walk over all pages gave.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) bytes_in_use: u64,
    pub(super) history: HistorySummary,
    pub(super) leases: u64,
}

/// The buckets of etcd.
const BUCKETS: [&[u8]; 10] = [
    schema::ALARM,
    schema::AUTH,
    schema::AUTH_ROLES,
    schema::AUTH_USERS,
    schema::CLUSTER,
    schema::KEY,
    schema::LEASE,
    schema::MEMBERS,
    schema::MEMBERS_REMOVED,
    schema::META,
];

/// What a server that finds nothing in a database goes by.
const EMPTY: Facts = Facts {
    revision: Revision::EMPTY,
    last_row: None,
    scheduled_compact: None,
    finished_compact: None,
    consistent_index: None,
    term: None,
    conf_state: None,
    storage_version: None,
};

impl Opened {
    /// Reads the meta pages, the newest row and the small buckets of `file`.
    pub(super) fn read(path: &Path, file: File, findings: &mut Findings) -> Result<Self, Stop> {
        let pages = |error| damage::of_pages(path, error);
        let bytes = file
            .size()
            .map_err(|source| super::error::VerifyError::open(path, source))?;
        let mut opened = Self {
            path: path.to_owned(),
            database: None,
            bytes,
            facts: EMPTY,
            small: SmallBuckets::default(),
        };
        if bytes == 0 {
            findings.warn(WarningKind::DatabaseEmpty, path, "", "no bytes".to_owned());
            return Ok(opened);
        }
        let database = Database::open(file).map_err(pages)?;
        compare_metas(path, &database, findings);
        warn_of_buckets(path, &database, findings)?;
        opened.facts = facts(path, &database, findings)?;
        opened.small = SmallBuckets::read(path, &database)?;
        newest_row(path, &database)?;
        opened.database = Some(database);
        opened.check_compactions(findings);
        Ok(opened)
    }

    /// Whether anything was ever applied to it.
    pub(super) fn is_blank(&self) -> bool {
        self.facts.consistent_index.is_none() && self.facts.last_row.is_none()
    }

    pub(super) fn meta(&self) -> Option<&Meta> {
        self.database.as_ref().map(Database::meta)
    }

    fn check_compactions(&self, findings: &mut Findings) {
        let (scheduled, finished) = (self.facts.scheduled_compact, self.facts.finished_compact);
        if let (Some(scheduled), Some(finished)) = (scheduled, finished)
            && finished > scheduled
        {
            findings.fault(
                FaultKind::CompactionOrder,
                &self.path,
                "bucket meta",
                format!("compaction {finished} is finished, but the newest begun is {scheduled}"),
            );
        }
    }

    /// Reads every page once, following the history of every key on the way.
    pub(super) fn walk(&self, findings: &mut Findings) -> Result<Walked, Stop> {
        let Some(database) = &self.database else {
            return Ok(Walked {
                bytes_in_use: 0,
                history: HistorySummary::default(),
                leases: 0,
            });
        };
        let mut history = History::new(&self.facts);
        let mut leases = HashSet::new();
        let checked = read_ahead::beside(database.source(), self.bytes, || {
            check(database, |bucket, item| {
                if bucket == schema::KEY {
                    history.row(item.key, item.value)?;
                } else if bucket == schema::LEASE {
                    leases.insert(lease(item.key, item.value)?);
                }
                Ok(())
            })
        });
        let checked = checked.map_err(|fault: WalkFault| fault.into_stop(&self.path))?;
        let history = history
            .finish(|id| leases.contains(&id))
            .map_err(|fault| damage::of_row(&self.path, &fault))?;
        self.warn_of(&history.warnings, findings);
        Ok(Walked {
            bytes_in_use: checked
                .pages_used
                .saturating_mul(u64::from(database.meta().page_size)),
            history,
            leases: leases.len() as u64,
        })
    }

    fn warn_of(&self, odd: &[Odd], findings: &mut Findings) {
        for warning in odd {
            let what = match warning {
                Odd::UnknownLease { .. } => WarningKind::UnknownLease,
                _ => WarningKind::Superseded,
            };
            findings.warn(what, &self.path, "bucket key", warning.to_string());
        }
    }
}

/// Where the database stands. A server killed in its very first moments leaves one without rows, even without
/// buckets: then everything it acknowledged is in the log.
fn facts(path: &Path, database: &Database<File>, findings: &mut Findings) -> Result<Facts, Stop> {
    let facts = match Facts::read(database) {
        Err(FactsError::NotEtcd) => None,
        read => Some(read.map_err(|error| damage::of_facts(path, error))?),
    };
    if let Some(facts) = facts {
        return Ok(facts);
    }
    let meta =
        small_bucket(database, schema::META).map_err(|error| damage::of_facts(path, error))?;
    if meta.iter().any(|(key, _)| key == schema::CONSISTENT_INDEX) {
        return Err(damage::of_facts(path, FactsError::NotEtcd));
    }
    findings.warn(
        WarningKind::DatabaseEmpty,
        path,
        "",
        "there is no bucket named key yet".to_owned(),
    );
    Ok(EMPTY)
}

/// Both meta pages should be sound; with one of them etcd goes on.
fn compare_metas(path: &Path, database: &Database<File>, findings: &mut Findings) {
    let page_size = u64::from(database.meta().page_size);
    for page in [0, 1] {
        let mut bytes = [0; 128];
        let read = database
            .source()
            .read_exact_at(&mut bytes, page * page_size);
        let Err(fault) = read.map_or(Ok(()), |()| Meta::decode(&bytes).map(drop)) else {
            continue;
        };
        let reason = format!(
            "meta page cannot be used, the other is: {}",
            sentence(&fault)
        );
        let place = format!("page {}", PageId(page));
        findings.warn(WarningKind::MetaPage, path, place, reason);
    }
}

/// Every bucket should be one of etcd's.
fn warn_of_buckets(
    path: &Path,
    database: &Database<File>,
    findings: &mut Findings,
) -> Result<(), Stop> {
    let buckets = database
        .buckets()
        .map_err(|error| damage::of_pages(path, error))?;
    for (name, _) in buckets {
        if !BUCKETS.contains(&name.as_slice()) {
            let place = format!("bucket {:?}", String::from_utf8_lossy(&name));
            let reason = "etcd makes no such bucket".to_owned();
            findings.warn(WarningKind::UnknownBucket, path, place, reason);
        }
    }
    Ok(())
}

/// The newest row must be one, which is worth a look even when the others get none.
fn newest_row(path: &Path, database: &Database<File>) -> Result<(), Stop> {
    let pages = |error| damage::of_pages(path, error);
    let Some(root) = database.bucket(schema::KEY).map_err(pages)? else {
        return Ok(());
    };
    let mut cursor = database.scan_back(&root).map_err(pages)?;
    let Some(item) = cursor.next().map_err(pages)? else {
        return Ok(());
    };
    let row = |fault: RowFault| damage::of_row(path, &fault);
    let key = RevisionKey::decode(item.key)
        .map_err(|source| row(RowFault::Key { ordinal: 0, source }))?;
    let revision = key.main;
    let kv =
        KeyValue::decode(item.value).map_err(|source| row(RowFault::Value { revision, source }))?;
    // A delete has no numbers, and the mark that moves a store to a higher revision has nothing at all.
    if !key.is_tombstone && !item.value.is_empty() && kv.mod_revision != revision {
        return Err(row(RowFault::Numbers {
            revision,
            modified: kv.mod_revision,
            created: kv.create_revision,
            version: kv.version,
        }));
    }
    Ok(())
}

/// What can be wrong on the walk.
enum WalkFault {
    Pages(PageError),
    Row(RowFault),
    Lease(String),
}

impl From<PageError> for WalkFault {
    fn from(error: PageError) -> Self {
        Self::Pages(error)
    }
}

impl From<RowFault> for WalkFault {
    fn from(fault: RowFault) -> Self {
        Self::Row(fault)
    }
}

impl WalkFault {
    fn into_stop(self, path: &Path) -> Stop {
        match self {
            Self::Pages(error) => damage::of_pages(path, error),
            Self::Row(fault) => damage::of_row(path, &fault),
            Self::Lease(reason) => Stop::damage(FaultKind::Entry, path, "bucket lease", reason),
        }
    }
}

/// The id of a lease: etcd takes it from the value, so key and value must agree.
fn lease(key: &[u8], value: &[u8]) -> Result<LeaseId, WalkFault> {
    let lease = schema::Lease::decode(value).map_err(|error| {
        WalkFault::Lease(format!("a lease cannot be read: {}", sentence(&error)))
    })?;
    if key != lease.id.0.to_be_bytes() {
        return Err(WalkFault::Lease(format!(
            "lease {} is stored under another id",
            lease.id
        )));
    }
    Ok(lease.id)
}
