//! Compares sound data with its backup before anything may replace it. Used by `init`, which only decides, and by
//! `initialize`, which also restores.
//!
//! Names of objects only say whether a comparison is needed. Objects that are unreadable are left out: a stray name
//! proves nothing about the data.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::chain::{ChainRequest, ChainTarget, ChooseError, SnapshotChain, choose};
use mainstay_backup::ObjectSource;
use mainstay_history::replay::ReplayScope;
use mainstay_history::{
    ChainFinding, ChainReader, CompareHistoryError, DataDirHistory, EvidenceError, FullReadError,
    HistoryRelation, ObjectStream, relate_to_chain,
};
use mainstay_store::is_store_failure;
use mainstay_telemetry::ErrorChain;
use mainstay_verdict::{BackupRelation, Verdict};
use tracing::{info, warn};

use crate::backup::{Backup, StoreObjectSource};
use crate::directory::database_path;
use crate::failure::CommandFailure;
use crate::rebuild::Meter;

/// Limit of objects that are unreadable or of another history: each one costs a download.
const MAX_EXCLUDED: usize = 8;

/// Result of comparing data with its backup.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackupComparison {
    /// `None` if nothing readable of the backup is newer than the data, or no object could be compared.
    pub(crate) relation: Option<BackupRelation>,
    finding: Option<ChainFinding>,
    /// Why the relation is unknown.
    reason: Option<String>,
    /// Keys of unreadable objects.
    pub(crate) unreadable: BTreeSet<String>,
}

impl BackupComparison {
    fn unknown(reason: String, unreadable: BTreeSet<String>) -> Self {
        Self {
            relation: Some(BackupRelation::Unknown),
            reason: Some(reason),
            unreadable,
            finding: None,
        }
    }
}

impl fmt::Display for BackupComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.finding, &self.reason) {
            (Some(finding), _) => {
                let ChainFinding {
                    object,
                    compared_at,
                    data_revision,
                    chain_revision,
                    ..
                } = finding;
                let result = match finding.relation {
                    HistoryRelation::Diverged => "different rows",
                    HistoryRelation::Unknown => "no common row",
                    _ => "the same row",
                };
                write!(
                    f,
                    "data ends at revision {data_revision}, the backup at {chain_revision}; {object} and the data have \
                     {result} at revision {compared_at}"
                )?;
            }
            (None, Some(reason)) => write!(f, "the comparison failed: {reason}")?,
            (None, None) => f.write_str("no object of the backup could be compared")?,
        }
        if !self.unreadable.is_empty() {
            let names: Vec<&str> = self.unreadable.iter().map(String::as_str).collect();
            write!(f, "; unreadable: {}", names.join(", "))?;
        }
        Ok(())
    }
}

/// Compares the data of an only member with its backup. The directory must be sound.
///
/// # Errors
///
/// Only if the store or the local disk fails: then nothing is known.
pub(crate) async fn compare_with_backup(
    data_dir: &Path,
    backup: &Backup,
) -> Result<BackupComparison, CommandFailure> {
    let reader = BackupReader {
        sources: backup.sources(&Arc::new(Meter::default())),
        scratch_dir: scratch_dir(data_dir),
    };
    let (data_dir, catalogue) = (data_dir.to_owned(), backup.catalogue.clone());
    let work = tokio::task::spawn_blocking(move || compare(&data_dir, &catalogue, &reader));
    let check = work
        .await
        .map_err(|error| CommandFailure::new(Verdict::Failed, &error))??;
    info!(relation = ?check.relation, "{check}");
    Ok(check)
}

/// The volume of the data: other directories of a container may be read-only or small.
fn scratch_dir(data_dir: &Path) -> PathBuf {
    let parent = data_dir.parent().filter(|path| *path != Path::new(""));
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// Opens the data, without its log if that cannot be replayed: the database alone may prove that it has all of the
/// backup. Returns why the log was not read.
fn open_data(data_dir: &Path) -> Result<(DataDirHistory, Option<String>), String> {
    // Of an only voter, so every entry of its log is committed.
    let (db, wal) = (database_path(data_dir), data_dir.join("member/wal"));
    let unread = match DataDirHistory::open(&db, &wal, ReplayScope::OnlyVoter) {
        Ok(data) => return Ok((data, None)),
        Err(error) => ErrorChain(&error).to_string(),
    };
    match DataDirHistory::open_database(&db) {
        Ok(data) => Ok((data, Some(unread))),
        Err(error) => Err(ErrorChain(&error).to_string()),
    }
}

fn compare(
    data_dir: &Path,
    catalogue: &Catalogue,
    reader: &impl ChainReader,
) -> Result<BackupComparison, CommandFailure> {
    let (data, unread_log) = match open_data(data_dir) {
        Ok(opened) => opened,
        Err(reason) => return Ok(BackupComparison::unknown(reason, BTreeSet::new())),
    };
    let mut excluded = BTreeSet::new();
    let mut unreadable = BTreeSet::new();
    let mut diverged = None;
    while excluded.len() <= MAX_EXCLUDED {
        let Some(chain) = newest_chain(catalogue, &excluded) else {
            return Ok(diverged.unwrap_or(BackupComparison {
                unreadable,
                ..BackupComparison::default()
            }));
        };
        let error = match relate_to_chain(&data, catalogue, &chain, reader) {
            Ok(finding) => {
                let check = judge(finding, unread_log.as_deref(), &unreadable);
                match check.relation {
                    // It may be a single object of another cluster before a chain that continues the data.
                    Some(BackupRelation::Diverged) => {
                        excluded.insert(chain.base.key.clone());
                        diverged = diverged.or(Some(check));
                        continue;
                    }
                    Some(BackupRelation::Equal | BackupRelation::Ahead) | None => return Ok(check),
                    // A restore would take the newest chain, which is of another history.
                    Some(_) => return Ok(diverged.unwrap_or(check)),
                }
            }
            Err(error) => error,
        };
        if is_store_failure(&error) {
            return Err(CommandFailure::new(Verdict::StoreUnavailable, &error));
        }
        match &error {
            CompareHistoryError::Object(object) if is_local(object) => {
                return Err(CommandFailure::new(Verdict::Disk, object));
            }
            CompareHistoryError::Object(object) => {
                warn!(object_key = object.key(), error = %ErrorChain(object), "object of the backup is unreadable");
                unreadable.insert(object.key().to_owned());
                excluded.insert(object.key().to_owned());
            }
            error @ CompareHistoryError::Data(_) => {
                let reason = ErrorChain(error).to_string();
                return Ok(BackupComparison::unknown(reason, unreadable));
            }
        }
    }
    let reason = format!(
        "more than {MAX_EXCLUDED} objects of the backup are unreadable or of another history"
    );
    Ok(diverged.unwrap_or(BackupComparison::unknown(reason, unreadable)))
}

/// What a finding means for the data.
fn judge(
    finding: ChainFinding,
    unread_log: Option<&str>,
    unreadable: &BTreeSet<String>,
) -> BackupComparison {
    let has_newer = finding.data_revision < finding.chain_revision;
    let relation = match (finding.relation, unread_log) {
        (HistoryRelation::Behind, Some(reason)) => {
            return BackupComparison::unknown(reason.to_owned(), unreadable.clone());
        }
        // Only names were newer than the data, and what has them is unreadable: nothing would be lost by starting.
        (HistoryRelation::Diverged | HistoryRelation::Unknown, _) if !has_newer => None,
        (relation, _) => Some(to_reported(relation)),
    };
    BackupComparison {
        relation,
        finding: Some(finding),
        reason: None,
        unreadable: unreadable.clone(),
    }
}

/// A full local disk says nothing about an object.
fn is_local(error: &EvidenceError) -> bool {
    matches!(
        error,
        EvidenceError::Full {
            source: FullReadError::Scratch(_),
            ..
        }
    )
}

/// The newest chain without a gap and without the excluded objects.
fn newest_chain(catalogue: &Catalogue, excluded: &BTreeSet<String>) -> Option<SnapshotChain> {
    let request = |target| ChainRequest {
        excluded: excluded.clone(),
        ..ChainRequest::new(target)
    };
    match choose(catalogue, &request(ChainTarget::Latest)) {
        Ok(chain) => Some(chain),
        Err(ChooseError::MissingRevisions {
            newest_restorable, ..
        }) => choose(
            catalogue,
            &request(ChainTarget::Revision(newest_restorable)),
        )
        .ok(),
        Err(_) => None,
    }
}

fn to_reported(relation: HistoryRelation) -> BackupRelation {
    match relation {
        HistoryRelation::Equal => BackupRelation::Equal,
        HistoryRelation::Behind => BackupRelation::Behind,
        HistoryRelation::Ahead => BackupRelation::Ahead,
        HistoryRelation::Diverged => BackupRelation::Diverged,
        HistoryRelation::Unknown => BackupRelation::Unknown,
    }
}

struct BackupReader {
    sources: StoreObjectSource,
    scratch_dir: PathBuf,
}

impl ChainReader for BackupReader {
    fn is_store_failure(&self, error: &EvidenceError) -> bool {
        is_store_failure(error)
    }

    fn open(&self, object: &SnapshotObject) -> io::Result<ObjectStream> {
        self.sources.open(object)
    }

    fn scratch(&self) -> io::Result<File> {
        tempfile::tempfile_in(&self.scratch_dir)
    }
}
