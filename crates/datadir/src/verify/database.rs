//! Database checks: meta pages, the small buckets, and the walk over all pages.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use mainstay_bbolt::{BboltError as PageError, Database, Meta, ReadAt as _, check};
use mainstay_ids::{LeaseId, PageId, Revision};
use mainstay_mvcc::{
    DatabaseStatus, DatabaseStatusError, HistoryChecker, HistorySummary, HistoryWarning as Odd,
    KeyValue, RevisionKey, RowFault, read_small_bucket, schema,
};

use super::classification;
use super::findings::{CheckFailure, Findings};
use super::read_ahead;
use super::report::{FaultKind, WarningKind, format_error_chain};
use super::small_buckets::SmallBuckets;

/// A database of which only a few pages were read.
#[derive(Debug)]
pub(super) struct OpenedDatabase {
    pub(super) path: PathBuf,
    /// `None` for an empty file, which bbolt initializes at the next start.
    database: Option<Database<File>>,
    pub(super) bytes: u64,
    pub(super) facts: DatabaseStatus,
    pub(super) small_buckets: SmallBuckets,
}

/// Result of the walk over all pages.
#[derive(Debug)]
pub(super) struct WalkSummary {
    pub(super) bytes_in_use: u64,
    pub(super) history: HistorySummary,
    pub(super) leases: u64,
}

/// All buckets that etcd creates.
const KNOWN_BUCKETS: [&[u8]; 10] = [
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

/// Facts of an empty database, as etcd assumes them.
const EMPTY_FACTS: DatabaseStatus = DatabaseStatus {
    revision: Revision::EMPTY,
    last_row: None,
    scheduled_compact: None,
    finished_compact: None,
    consistent_index: None,
    term: None,
    conf_state: None,
    storage_version: None,
};

impl OpenedDatabase {
    /// Reads the meta pages, the newest row and the small buckets of `file`.
    pub(super) fn read(
        path: &Path,
        file: File,
        findings: &mut Findings,
    ) -> Result<Self, CheckFailure> {
        let pages = |error| classification::classify_page_error(path, error);
        let bytes = file
            .size()
            .map_err(|source| super::error::VerifyError::open(path, source))?;
        let mut opened = Self {
            path: path.to_owned(),
            database: None,
            bytes,
            facts: EMPTY_FACTS,
            small_buckets: SmallBuckets::default(),
        };
        // A crash can leave an empty file between creation and initialization by bbolt.
        if bytes == 0 {
            findings.add_warning(
                WarningKind::DatabaseEmpty,
                path,
                "",
                "file is empty".to_owned(),
            );
            return Ok(opened);
        }
        let database = Database::open(file).map_err(pages)?;
        check_meta_pages(path, &database, findings);
        warn_unknown_buckets(path, &database, findings)?;
        opened.facts = read_facts(path, &database, findings)?;
        opened.small_buckets = SmallBuckets::read(path, &database)?;
        // The revision comes from the newest row, so even a sanity check must trust it.
        check_newest_row(path, &database)?;
        opened.database = Some(database);
        opened.check_compactions(findings);
        Ok(opened)
    }

    /// Whether no entry was ever applied.
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
            findings.add_fault(
                FaultKind::CompactionOrder,
                &self.path,
                "bucket meta",
                format!(
                    "finished compaction {finished} is newer than scheduled compaction {scheduled}"
                ),
            );
        }
    }

    /// Reads every page once and checks the history of every key.
    pub(super) fn walk(&self, findings: &mut Findings) -> Result<WalkSummary, CheckFailure> {
        let Some(database) = &self.database else {
            return Ok(WalkSummary {
                bytes_in_use: 0,
                history: HistorySummary::default(),
                leases: 0,
            });
        };
        let mut history = HistoryChecker::new(&self.facts);
        let mut leases = HashSet::new();
        // One pass over the pages serves the structural check, the key histories and the leases.
        let checked = read_ahead::run_with_read_ahead(database.source(), self.bytes, || {
            check(database, |bucket, item| {
                if bucket == schema::KEY {
                    history.check_row(item.key, item.value)?;
                } else if bucket == schema::LEASE {
                    leases.insert(decode_lease_id(item.key, item.value)?);
                }
                Ok(())
            })
        });
        let checked = checked.map_err(|fault: WalkError| fault.into_check_failure(&self.path))?;
        let history = history
            .finish(|id| leases.contains(&id))
            .map_err(|fault| classification::classify_row_fault(&self.path, &fault))?;
        self.warn_history(&history.warnings, findings);
        Ok(WalkSummary {
            bytes_in_use: checked
                .pages_used
                .saturating_mul(u64::from(database.meta().page_size)),
            history,
            leases: leases.len() as u64,
        })
    }

    fn warn_history(&self, warnings: &[Odd], findings: &mut Findings) {
        for warning in warnings {
            let what = match warning {
                Odd::UnknownLease { .. } => WarningKind::UnknownLease,
                _ => WarningKind::Superseded,
            };
            findings.add_warning(what, &self.path, "bucket key", warning.to_string());
        }
    }
}

/// Reads revision, index and term. A server killed during its first start leaves a database without rows or
/// even without buckets; everything it acknowledged is then in the WAL.
fn read_facts(
    path: &Path,
    database: &Database<File>,
    findings: &mut Findings,
) -> Result<DatabaseStatus, CheckFailure> {
    let facts = match DatabaseStatus::read(database) {
        Err(DatabaseStatusError::NotEtcd) => None,
        read => Some(read.map_err(|error| classification::classify_facts_error(path, error))?),
    };
    if let Some(facts) = facts {
        return Ok(facts);
    }
    let meta = read_small_bucket(database, schema::META)
        .map_err(|error| classification::classify_facts_error(path, error))?;
    // With a consistent index, entries were applied, so the key bucket must exist.
    if meta.iter().any(|(key, _)| key == schema::CONSISTENT_INDEX) {
        return Err(classification::classify_facts_error(
            path,
            DatabaseStatusError::NotEtcd,
        ));
    }
    findings.add_warning(
        WarningKind::DatabaseEmpty,
        path,
        "",
        "bucket key does not exist yet".to_owned(),
    );
    Ok(EMPTY_FACTS)
}

/// Warns about an invalid meta page; etcd starts with the other one.
fn check_meta_pages(path: &Path, database: &Database<File>, findings: &mut Findings) {
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
            "invalid meta page, etcd uses the other one: {}",
            format_error_chain(&fault)
        );
        let place = format!("page {}", PageId(page));
        findings.add_warning(WarningKind::MetaPage, path, place, reason);
    }
}

/// Warns about buckets that etcd does not create: the name of a known bucket may be damaged.
fn warn_unknown_buckets(
    path: &Path,
    database: &Database<File>,
    findings: &mut Findings,
) -> Result<(), CheckFailure> {
    let buckets = database
        .buckets()
        .map_err(|error| classification::classify_page_error(path, error))?;
    for (name, _) in buckets {
        if !KNOWN_BUCKETS.contains(&name.as_slice()) {
            let place = format!("bucket {:?}", String::from_utf8_lossy(&name));
            let reason = "unknown bucket, not created by etcd".to_owned();
            findings.add_warning(WarningKind::UnknownBucket, path, place, reason);
        }
    }
    Ok(())
}

/// Checks the newest row, also in a verification that skips the other rows.
fn check_newest_row(path: &Path, database: &Database<File>) -> Result<(), CheckFailure> {
    let pages = |error| classification::classify_page_error(path, error);
    let Some(root) = database.bucket(schema::KEY).map_err(pages)? else {
        return Ok(());
    };
    let mut cursor = database.scan_back(&root).map_err(pages)?;
    let Some(item) = cursor.next().map_err(pages)? else {
        return Ok(());
    };
    let row = |fault: RowFault| classification::classify_row_fault(path, &fault);
    let key = RevisionKey::decode(item.key)
        .map_err(|source| row(RowFault::InvalidKey { ordinal: 0, source }))?;
    let revision = key.main;
    let kv = KeyValue::decode(item.value)
        .map_err(|source| row(RowFault::InvalidValue { revision, source }))?;
    // A tombstone has no revision numbers, and the row of a revision bump has an empty value.
    if !key.is_tombstone && !item.value.is_empty() && kv.mod_revision != revision {
        return Err(row(RowFault::InconsistentNumbers {
            revision,
            modified: kv.mod_revision,
            created: kv.create_revision,
            version: kv.version,
        }));
    }
    Ok(())
}

/// An error found by the walk.
enum WalkError {
    Pages(PageError),
    Row(RowFault),
    Lease(String),
}

impl From<PageError> for WalkError {
    fn from(error: PageError) -> Self {
        Self::Pages(error)
    }
}

impl From<RowFault> for WalkError {
    fn from(fault: RowFault) -> Self {
        Self::Row(fault)
    }
}

impl WalkError {
    fn into_check_failure(self, path: &Path) -> CheckFailure {
        match self {
            Self::Pages(error) => classification::classify_page_error(path, error),
            Self::Row(fault) => classification::classify_row_fault(path, &fault),
            Self::Lease(reason) => {
                CheckFailure::damage(FaultKind::Entry, path, "bucket lease", reason)
            }
        }
    }
}

/// The ID of a lease: etcd reads it from the value, so key and value must match.
fn decode_lease_id(key: &[u8], value: &[u8]) -> Result<LeaseId, WalkError> {
    let lease = schema::Lease::decode(value).map_err(|error| {
        WalkError::Lease(format!("decode lease: {}", format_error_chain(&error)))
    })?;
    if key != lease.id.0.to_be_bytes() {
        return Err(WalkError::Lease(format!(
            "lease {} is stored under another ID",
            lease.id
        )));
    }
    Ok(lease.id)
}
