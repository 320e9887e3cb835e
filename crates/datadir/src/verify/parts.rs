//! Finds the parts of a directory, and settles the cases in which one is not there.

use std::fs::File;
use std::path::Path;

use mainstay_wal::{ListError, Log};
use rustix::fs::FlockOperation;

use super::Depth;
use super::conclusion::{conclude, gather};
use super::database::Opened;
use super::error::VerifyError;
use super::findings::Findings;
use super::job::Job;
use super::layout::{Kind, Layout, SnapFolder, is_absence, kind_of};
use super::report::{DirVerdict, FaultKind, Report, WarningKind};
use crate::lock::try_flock;

/// Verifies a data directory. Damage is in the report; an error means that nothing can be said.
pub fn verify(data_dir: &Path, depth: Depth) -> Result<Report, VerifyError> {
    let layout = Layout::of(data_dir);
    let mut findings = Findings::default();
    if let Some(verdict) = look_for_parts(data_dir, &layout, &mut findings)? {
        return Ok(conclude(verdict, findings, None));
    }
    let Some(file) = open_database(&layout, &mut findings)? else {
        return without_database(&layout, findings);
    };
    if !try_flock(&file, FlockOperation::NonBlockingLockShared, &layout.db)? {
        return Ok(conclude(DirVerdict::InUse, findings, None));
    }
    let opened = Opened::read(&layout.db, file, &mut findings);
    let db = findings.settle(opened)?;
    if !has_log(&layout)? {
        return Ok(without_log(&layout, db.as_ref(), findings));
    }
    let folder = SnapFolder::list(&layout.snap)?;
    let job = Job {
        layout: &layout,
        folder: &folder,
        depth,
    };
    job.run(db, findings)
}

/// The folders every directory has. A verdict when it is clear already.
fn look_for_parts(
    data_dir: &Path,
    layout: &Layout,
    findings: &mut Findings,
) -> Result<Option<DirVerdict>, VerifyError> {
    for path in [data_dir, &layout.member] {
        match kind_of(path)? {
            Kind::Folder => {}
            Kind::Absent => return Ok(Some(DirVerdict::Missing)),
            _ => return Ok(Some(not_a(path, "folder", findings))),
        }
    }
    match kind_of(&layout.snap)? {
        Kind::Folder => Ok(None),
        Kind::Absent if !has_log(layout)? => Ok(Some(first_start_unfinished(layout, findings))),
        _ => Ok(Some(not_a(&layout.snap, "folder", findings))),
    }
}

fn not_a(path: &Path, what: &str, findings: &mut Findings) -> DirVerdict {
    let reason = format!("there is no such {what}");
    findings.fault(FaultKind::PartMissing, path, "", reason);
    DirVerdict::Corrupt
}

/// Nothing was acknowledged before there was a log, so nothing can have been lost.
fn first_start_unfinished(layout: &Layout, findings: &mut Findings) -> DirVerdict {
    let reason = "the first start ended before there was a log".to_owned();
    findings.warn(
        WarningKind::FirstStartUnfinished,
        &layout.member,
        "",
        reason,
    );
    DirVerdict::Missing
}

/// The database, if it is there.
fn open_database(layout: &Layout, findings: &mut Findings) -> Result<Option<File>, VerifyError> {
    match kind_of(&layout.db)? {
        Kind::Absent => Ok(None),
        Kind::File => match File::open(&layout.db) {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(source) => Err(VerifyError::open(&layout.db, source)),
        },
        _ => {
            not_a(&layout.db, "file", findings);
            Ok(None)
        }
    }
}

fn without_database(layout: &Layout, mut findings: Findings) -> Result<Report, VerifyError> {
    if !findings.faults.is_empty() {
        return Ok(conclude(DirVerdict::Corrupt, findings, None));
    }
    let verdict = if has_log(layout)? {
        not_a(&layout.db, "file", &mut findings)
    } else {
        first_start_unfinished(layout, &mut findings)
    };
    Ok(conclude(verdict, findings, None))
}

/// A database to which something was applied had a log.
fn without_log(layout: &Layout, db: Option<&Opened>, mut findings: Findings) -> Report {
    let verdict = if db.is_some_and(Opened::is_blank) && findings.faults.is_empty() {
        first_start_unfinished(layout, &mut findings)
    } else {
        let reason = "there is no log, and the database is not new".to_owned();
        findings.fault(FaultKind::PartMissing, &layout.wal, "", reason);
        DirVerdict::Corrupt
    };
    let facts = db.map(|db| gather(db, None, None));
    conclude(verdict, findings, facts)
}

/// Whether there is at least one segment.
fn has_log(layout: &Layout) -> Result<bool, VerifyError> {
    match Log::open(&layout.wal) {
        Err(ListError::Empty { .. }) => Ok(false),
        Err(ListError::List { source, .. }) if is_absence(&source) => Ok(false),
        Err(ListError::List { dir, source }) => Err(VerifyError::List { dir, source }),
        Err(ListError::Stat { file, source }) => Err(VerifyError::Open { file, source }),
        _ => Ok(true),
    }
}
