//! Finds the parts of a directory, and handles those with missing parts.

use std::fs::File;
use std::path::Path;

use mainstay_wal::{ListError, Log};
use rustix::fs::FlockOperation;

use super::Depth;
use super::database::OpenedDatabase;
use super::dir_check::DirCheck;
use super::error::VerifyError;
use super::findings::Findings;
use super::layout::{DirLayout, PathKind, SnapDir, is_not_found, read_path_kind};
use super::report::{DirReport, DirVerdict, FaultKind, WarningKind};
use super::report_builder::{build_report, collect_facts};
use crate::lock::try_flock;

/// Verifies a data directory. Damage is in the report; an error means that verification is not possible.
pub fn verify(data_dir: &Path, depth: Depth) -> Result<DirReport, VerifyError> {
    let layout = DirLayout::new(data_dir);
    let mut findings = Findings::default();
    if let Some(verdict) = check_required_dirs(data_dir, &layout, &mut findings)? {
        return Ok(build_report(verdict, findings, None));
    }
    let Some(file) = open_database(&layout, &mut findings)? else {
        return report_without_database(&layout, findings);
    };
    // bbolt holds an exclusive flock while etcd runs; the shared lock also keeps etcd from starting.
    if !try_flock(&file, FlockOperation::NonBlockingLockShared, &layout.db)? {
        return Ok(build_report(DirVerdict::InUse, findings, None));
    }
    let opened = OpenedDatabase::read(&layout.db, file, &mut findings);
    let db = findings.record_damage(opened)?;
    if !has_log(&layout)? {
        return Ok(report_without_log(&layout, db.as_ref(), findings));
    }
    let folder = SnapDir::list(&layout.snap)?;
    let job = DirCheck {
        layout: &layout,
        snap_dir: &folder,
        depth,
    };
    job.run(db, findings)
}

/// Checks the required directories; returns a verdict if it is already determined.
fn check_required_dirs(
    data_dir: &Path,
    layout: &DirLayout,
    findings: &mut Findings,
) -> Result<Option<DirVerdict>, VerifyError> {
    for path in [data_dir, &layout.member] {
        match read_path_kind(path)? {
            PathKind::Directory => {}
            PathKind::Absent => return Ok(Some(DirVerdict::Missing)),
            _ => return Ok(Some(add_missing_part(path, "directory", findings))),
        }
    }
    match read_path_kind(&layout.snap)? {
        PathKind::Directory => Ok(None),
        // etcd creates `snap` before `wal`: without either, the first start was interrupted.
        PathKind::Absent if !has_log(layout)? => {
            Ok(Some(warn_first_start_unfinished(layout, findings)))
        }
        _ => Ok(Some(add_missing_part(&layout.snap, "directory", findings))),
    }
}

fn add_missing_part(path: &Path, what: &str, findings: &mut Findings) -> DirVerdict {
    let reason = format!("missing or not a {what}");
    findings.add_fault(FaultKind::PartMissing, path, "", reason);
    DirVerdict::Corrupt
}

/// Not damage: etcd acknowledges no write before the WAL exists, so nothing is lost.
fn warn_first_start_unfinished(layout: &DirLayout, findings: &mut Findings) -> DirVerdict {
    let reason = "first start ended before the WAL was created".to_owned();
    findings.add_warning(
        WarningKind::FirstStartUnfinished,
        &layout.member,
        "",
        reason,
    );
    DirVerdict::Missing
}

/// Opens the database; `None` if it does not exist.
fn open_database(layout: &DirLayout, findings: &mut Findings) -> Result<Option<File>, VerifyError> {
    match read_path_kind(&layout.db)? {
        PathKind::Absent => Ok(None),
        PathKind::File => match File::open(&layout.db) {
            Ok(file) => Ok(Some(file)),
            // Deleted between the two calls.
            Err(error) if is_not_found(&error) => Ok(None),
            Err(source) => Err(VerifyError::open(&layout.db, source)),
        },
        _ => {
            add_missing_part(&layout.db, "file", findings);
            Ok(None)
        }
    }
}

fn report_without_database(
    layout: &DirLayout,
    mut findings: Findings,
) -> Result<DirReport, VerifyError> {
    if !findings.faults.is_empty() {
        return Ok(build_report(DirVerdict::Corrupt, findings, None));
    }
    // A WAL without database: acknowledged writes before the raft snapshot are lost.
    let verdict = if has_log(layout)? {
        add_missing_part(&layout.db, "file", &mut findings)
    } else {
        warn_first_start_unfinished(layout, &mut findings)
    };
    Ok(build_report(verdict, findings, None))
}

/// Reports damage unless the database is blank: a database with applied entries had a WAL.
fn report_without_log(
    layout: &DirLayout,
    db: Option<&OpenedDatabase>,
    mut findings: Findings,
) -> DirReport {
    let verdict = if db.is_some_and(OpenedDatabase::is_blank) && findings.faults.is_empty() {
        warn_first_start_unfinished(layout, &mut findings)
    } else {
        let reason = "WAL is missing, but the database is not new".to_owned();
        findings.add_fault(FaultKind::PartMissing, &layout.wal, "", reason);
        DirVerdict::Corrupt
    };
    let facts = db.map(|db| collect_facts(db, None, None));
    build_report(verdict, findings, facts)
}

/// Whether the WAL has at least one segment.
fn has_log(layout: &DirLayout) -> Result<bool, VerifyError> {
    match Log::open(&layout.wal) {
        Err(ListError::Empty { .. }) => Ok(false),
        Err(ListError::List { source, .. }) if is_not_found(&source) => Ok(false),
        Err(ListError::List { dir, source }) => Err(VerifyError::List { dir, source }),
        Err(ListError::Stat { file, source }) => Err(VerifyError::Open { file, source }),
        _ => Ok(true),
    }
}
