//! Checks both sides of a directory that has them, and how they fit together.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;

use mainstay_ids::RaftIndex;

use super::Depth;
use super::conclusion::{build_report, collect_facts};
use super::database::{OpenedDatabase, WalkSummary};
use super::error::VerifyError;
use super::findings::Findings;
use super::layout::{DirLayout, SnapDir};
use super::raft::{self, RaftState};
use super::relation;
use super::report::{DirVerdict, DirReport, WarningKind};

/// What is left to do once there is a database file and a log.
#[derive(Clone, Copy)]
pub(super) struct DirCheck<'a> {
    pub(super) layout: &'a DirLayout,
    pub(super) snap_dir: &'a SnapDir,
    pub(super) depth: Depth,
}

/// Both sides of a directory, as far as they can be read.
struct DirContents {
    db: Option<OpenedDatabase>,
    walk_summary: Option<WalkSummary>,
    raft: Option<RaftState>,
}

impl DirCheck<'_> {
    pub(super) fn run(
        self,
        db: Option<OpenedDatabase>,
        mut findings: Findings,
    ) -> Result<DirReport, VerifyError> {
        let applied = applied_index(db.as_ref());
        let may_be_replaced = self
            .snap_dir
            .databases
            .iter()
            .any(|(index, _)| *index > applied);
        let sides = if may_be_replaced {
            self.check_sequentially(db, &mut findings)?
        } else {
            self.check_concurrently(db, &mut findings)?
        };
        if let (Some(db), Some(raft)) = (&sides.db, &sides.raft) {
            relation::check_indexes(self.layout, db, raft, &mut findings);
            if self.depth == Depth::Full {
                relation::check_membership(self.layout, db, raft, &mut findings);
            }
        }
        if let Some(db) = &sides.db {
            warn_alarms(db, &mut findings);
        }
        let verdict = if findings.faults.is_empty() {
            DirVerdict::Valid
        } else {
            DirVerdict::Corrupt
        };
        let facts = sides
            .db
            .as_ref()
            .map(|db| collect_facts(db, sides.walk_summary.as_ref(), sides.raft.as_ref()));
        Ok(build_report(verdict, findings, facts))
    }

    /// Database and log are different files, and reading either takes a core: each gets its own.
    fn check_concurrently(self, db: Option<OpenedDatabase>, findings: &mut Findings) -> Result<DirContents, VerifyError> {
        let applied = applied_index(db.as_ref());
        let (walk_summary, raft, of_raft) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut findings = Findings::default();
                let raft = self.check_raft(applied, &mut findings);
                (raft, findings)
            });
            let walk_summary = self.walk_database(db.as_ref(), findings);
            let (raft, of_raft) = match other.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            (walk_summary, raft, of_raft)
        });
        findings.merge(of_raft);
        Ok(DirContents {
            db,
            walk_summary: walk_summary?,
            raft: raft?,
        })
    }

    /// A database from the leader may be about to replace the present one, and only the log tells.
    fn check_sequentially(
        self,
        db: Option<OpenedDatabase>,
        findings: &mut Findings,
    ) -> Result<DirContents, VerifyError> {
        let raft = self.check_raft(applied_index(db.as_ref()), findings)?;
        let (db, raft) = match self.find_pending_database(db.as_ref(), raft.as_ref()) {
            Some((index, path)) => self.switch_database(index, &path, findings)?,
            None => (db, raft),
        };
        let walk_summary = self.walk_database(db.as_ref(), findings)?;
        Ok(DirContents { db, walk_summary, raft })
    }

    /// The database that takes the place of the present one at the next start: that of the snapshot to start from,
    /// when the present one is older. etcd opens the present one first, so that has to be possible.
    fn find_pending_database(
        self,
        db: Option<&OpenedDatabase>,
        raft: Option<&RaftState>,
    ) -> Option<(RaftIndex, PathBuf)> {
        let snapshot = raft?.snapshot_index();
        let is_needed = snapshot > applied_index(Some(db?));
        let found = self
            .snap_dir
            .databases
            .iter()
            .find(|(index, _)| *index == snapshot);
        found.filter(|_| is_needed).cloned()
    }

    /// Goes on with another database. What was wrong with the old one does not matter any more.
    fn switch_database(
        self,
        index: RaftIndex,
        path: &Path,
        findings: &mut Findings,
    ) -> Result<(Option<OpenedDatabase>, Option<RaftState>), VerifyError> {
        *findings = Findings::default();
        let reason =
            format!("takes the place of the present database, which is older than {index}");
        findings.add_warning(WarningKind::SnapshotDatabase, path, "", reason);
        let file = File::open(path).map_err(|source| VerifyError::open(path, source))?;
        let opened = OpenedDatabase::read(path, file, findings);
        let db = findings.record_damage(opened)?;
        let raft = self.check_raft(applied_index(db.as_ref()), findings)?;
        Ok((db, raft))
    }

    fn check_raft(
        self,
        applied: RaftIndex,
        findings: &mut Findings,
    ) -> Result<Option<RaftState>, VerifyError> {
        raft::inspect_raft_files(self.layout, self.snap_dir, self.depth, applied, findings)
    }

    fn walk_database(
        self,
        db: Option<&OpenedDatabase>,
        findings: &mut Findings,
    ) -> Result<Option<WalkSummary>, VerifyError> {
        match (self.depth, db) {
            (Depth::Full, Some(db)) => {
                let walk_summary = db.walk(findings);
                findings.record_damage(walk_summary)
            }
            _ => Ok(None),
        }
    }
}

/// The last entry a database has applied; 0 for none, or when it cannot be read.
fn applied_index(db: Option<&OpenedDatabase>) -> RaftIndex {
    db.and_then(|db| db.facts.consistent_index)
        .unwrap_or_default()
}

fn warn_alarms(db: &OpenedDatabase, findings: &mut Findings) {
    for alarm in &db.small_buckets.alarms {
        let reason = format!("{} of member {}", alarm.alarm, alarm.member_id);
        findings.add_warning(WarningKind::Alarm, &db.path, "bucket alarm", reason);
    }
}
