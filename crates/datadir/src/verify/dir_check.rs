//! Checks database and raft files of a directory, and their consistency.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;

use mainstay_ids::RaftIndex;

use super::Depth;
use super::consistency;
use super::database::{OpenedDatabase, WalkSummary};
use super::error::VerifyError;
use super::findings::Findings;
use super::layout::{DirLayout, SnapDir};
use super::raft::{self, RaftState};
use super::report::{DirReport, DirVerdict, WarningKind};
use super::report_builder::{build_report, collect_facts};

/// The checks of a directory that has a database file and a WAL.
#[derive(Clone, Copy)]
pub(super) struct DirCheck<'a> {
    pub(super) layout: &'a DirLayout,
    pub(super) snap_dir: &'a SnapDir,
    pub(super) depth: Depth,
}

/// Database and raft state of a directory, as far as they can be read.
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
        // A `.snap.db` above the applied index may replace the database at the next start.
        let may_be_replaced = self
            .snap_dir
            .databases
            .iter()
            .any(|(index, _)| *index > applied);
        let contents = if may_be_replaced {
            self.check_sequentially(db, &mut findings)?
        } else {
            self.check_concurrently(db, &mut findings)?
        };
        if let (Some(db), Some(raft)) = (&contents.db, &contents.raft) {
            consistency::check_indexes(self.layout, db, raft, &mut findings);
            // A sanity check does not read far enough back to know the members.
            if self.depth == Depth::Full {
                consistency::check_membership(self.layout, db, raft, &mut findings);
            }
        }
        if let Some(db) = &contents.db {
            warn_alarms(db, &mut findings);
        }
        let verdict = if findings.faults.is_empty() {
            DirVerdict::Valid
        } else {
            DirVerdict::Corrupt
        };
        let facts = contents
            .db
            .as_ref()
            .map(|db| collect_facts(db, contents.walk_summary.as_ref(), contents.raft.as_ref()));
        Ok(build_report(verdict, findings, facts))
    }

    /// Checks database and WAL on two threads: they are different files, and each check saturates a core.
    fn check_concurrently(
        self,
        db: Option<OpenedDatabase>,
        findings: &mut Findings,
    ) -> Result<DirContents, VerifyError> {
        let applied = applied_index(db.as_ref());
        let (walk_summary, raft, raft_findings) = thread::scope(|scope| {
            let raft_thread = scope.spawn(|| {
                let mut findings = Findings::default();
                let raft = self.check_raft(applied, &mut findings);
                (raft, findings)
            });
            let walk_summary = self.walk_database(db.as_ref(), findings);
            let (raft, raft_findings) = match raft_thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            (walk_summary, raft, raft_findings)
        });
        findings.merge(raft_findings);
        Ok(DirContents {
            db,
            walk_summary: walk_summary?,
            raft: raft?,
        })
    }

    /// Checks the WAL first: only it shows whether a database received from the leader replaces the current one.
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
        Ok(DirContents {
            db,
            walk_summary,
            raft,
        })
    }

    /// The received database that replaces the current one at the next start: that of the snapshot to start
    /// from, if the current one is older. etcd opens the current one first, so it must be readable.
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

    /// Continues with the received database. Drops findings about the old one, which etcd will replace.
    fn switch_database(
        self,
        index: RaftIndex,
        path: &Path,
        findings: &mut Findings,
    ) -> Result<(Option<OpenedDatabase>, Option<RaftState>), VerifyError> {
        // The raft check ran against the old database; it is repeated below.
        *findings = Findings::default();
        let reason =
            format!("replaces the current database, whose consistent index is below {index}");
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

/// The last applied entry; 0 if there is none or the database cannot be read.
fn applied_index(db: Option<&OpenedDatabase>) -> RaftIndex {
    db.and_then(|db| db.facts.consistent_index)
        .unwrap_or_default()
}

fn warn_alarms(db: &OpenedDatabase, findings: &mut Findings) {
    for alarm in &db.small_buckets.alarms {
        let reason = format!("alarm {} of member {}", alarm.alarm, alarm.member_id);
        findings.add_warning(WarningKind::Alarm, &db.path, "bucket alarm", reason);
    }
}
