//! Checks both sides of a directory that has them, and how they fit together.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;

use mainstay_ids::RaftIndex;

use super::Depth;
use super::conclusion::{conclude, gather};
use super::database::{Opened, Walked};
use super::error::VerifyError;
use super::findings::Findings;
use super::layout::{Layout, SnapFolder};
use super::raft::{self, RaftSide};
use super::relation;
use super::report::{DirVerdict, Report, WarningKind};

/// What is left to do once there is a database file and a log.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) layout: &'a Layout,
    pub(super) folder: &'a SnapFolder,
    pub(super) depth: Depth,
}

/// Both sides of a directory, as far as they can be read.
struct Sides {
    db: Option<Opened>,
    walked: Option<Walked>,
    raft: Option<RaftSide>,
}

impl Job<'_> {
    pub(super) fn run(
        self,
        db: Option<Opened>,
        mut findings: Findings,
    ) -> Result<Report, VerifyError> {
        let applied = applied_by(db.as_ref());
        let may_be_replaced = self
            .folder
            .databases
            .iter()
            .any(|(index, _)| *index > applied);
        let sides = if may_be_replaced {
            self.one_after_the_other(db, &mut findings)?
        } else {
            self.at_once(db, &mut findings)?
        };
        if let (Some(db), Some(raft)) = (&sides.db, &sides.raft) {
            relation::indexes(self.layout, db, raft, &mut findings);
            if self.depth == Depth::Full {
                relation::membership(self.layout, db, raft, &mut findings);
            }
        }
        if let Some(db) = &sides.db {
            warn_of_alarms(db, &mut findings);
        }
        let verdict = if findings.faults.is_empty() {
            DirVerdict::Valid
        } else {
            DirVerdict::Corrupt
        };
        let facts = sides
            .db
            .as_ref()
            .map(|db| gather(db, sides.walked.as_ref(), sides.raft.as_ref()));
        Ok(conclude(verdict, findings, facts))
    }

    /// Database and log are different files, and reading either takes a core: each gets its own.
    fn at_once(self, db: Option<Opened>, findings: &mut Findings) -> Result<Sides, VerifyError> {
        let applied = applied_by(db.as_ref());
        let (walked, raft, of_raft) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut findings = Findings::default();
                let raft = self.raft(applied, &mut findings);
                (raft, findings)
            });
            let walked = self.walk(db.as_ref(), findings);
            let (raft, of_raft) = match other.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            (walked, raft, of_raft)
        });
        findings.merge(of_raft);
        Ok(Sides {
            db,
            walked: walked?,
            raft: raft?,
        })
    }

    /// A database from the leader may be about to replace the present one, and only the log tells.
    fn one_after_the_other(
        self,
        db: Option<Opened>,
        findings: &mut Findings,
    ) -> Result<Sides, VerifyError> {
        let raft = self.raft(applied_by(db.as_ref()), findings)?;
        let (db, raft) = match self.successor(db.as_ref(), raft.as_ref()) {
            Some((index, path)) => self.adopt(index, &path, findings)?,
            None => (db, raft),
        };
        let walked = self.walk(db.as_ref(), findings)?;
        Ok(Sides { db, walked, raft })
    }

    /// The database that takes the place of the present one at the next start: that of the snapshot to start from,
    /// when the present one is older. etcd opens the present one first, so that has to be possible.
    fn successor(
        self,
        db: Option<&Opened>,
        raft: Option<&RaftSide>,
    ) -> Option<(RaftIndex, PathBuf)> {
        let snapshot = raft?.snapshot_index();
        let is_needed = snapshot > applied_by(Some(db?));
        let found = self
            .folder
            .databases
            .iter()
            .find(|(index, _)| *index == snapshot);
        found.filter(|_| is_needed).cloned()
    }

    /// Goes on with another database. What was wrong with the old one does not matter any more.
    fn adopt(
        self,
        index: RaftIndex,
        path: &Path,
        findings: &mut Findings,
    ) -> Result<(Option<Opened>, Option<RaftSide>), VerifyError> {
        *findings = Findings::default();
        let reason =
            format!("takes the place of the present database, which is older than {index}");
        findings.warn(WarningKind::SnapshotDatabase, path, "", reason);
        let file = File::open(path).map_err(|source| VerifyError::open(path, source))?;
        let opened = Opened::read(path, file, findings);
        let db = findings.settle(opened)?;
        let raft = self.raft(applied_by(db.as_ref()), findings)?;
        Ok((db, raft))
    }

    fn raft(
        self,
        applied: RaftIndex,
        findings: &mut Findings,
    ) -> Result<Option<RaftSide>, VerifyError> {
        raft::inspect(self.layout, self.folder, self.depth, applied, findings)
    }

    fn walk(
        self,
        db: Option<&Opened>,
        findings: &mut Findings,
    ) -> Result<Option<Walked>, VerifyError> {
        match (self.depth, db) {
            (Depth::Full, Some(db)) => {
                let walked = db.walk(findings);
                findings.settle(walked)
            }
            _ => Ok(None),
        }
    }
}

/// The last entry a database has applied; 0 for none, or when it cannot be read.
fn applied_by(db: Option<&Opened>) -> RaftIndex {
    db.and_then(|db| db.facts.consistent_index)
        .unwrap_or_default()
}

fn warn_of_alarms(db: &Opened, findings: &mut Findings) {
    for alarm in &db.small.alarms {
        let reason = format!("{} of member {}", alarm.alarm, alarm.member_id);
        findings.warn(WarningKind::Alarm, &db.path, "bucket alarm", reason);
    }
}
