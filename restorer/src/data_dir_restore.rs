//! Restores a new cluster from the data directory of an old member: same keys and revisions, new cluster and member ids.
//!
//! After a loss of quorum, a surviving member may have newer data than the backup. Its database is copied beside the
//! target, gets its new members, and is swapped in like a restored one. Entries that are only in the WAL are dropped: it
//! is unknown which of them a quorum had committed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use jiff::Timestamp;
use mainstay_datadir::{
    BootstrapInfo, DirVerdict, StagingDir, VolumeFence, WarningKind, write_raft_files,
};
use mainstay_verdict::Verdict;
use serde::Serialize;
use tracing::{info, warn};

use crate::directory::{RestoredMember, check_fence, database_path};
use crate::failure::CommandFailure;
use crate::health::{self, ValidationMode};
use crate::members::NewCluster;
use crate::outcome::CommandOutcome;
use crate::rebuild::finish::{self, NewClusterIdentity, RevisionBump};

/// A data directory that a cluster can be restored from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataDirCandidate {
    pub(crate) data_dir: PathBuf,
    /// Newest revision of its database.
    pub(crate) revision: i64,
    /// Highest revision etcd could have reached with its WAL.
    pub(crate) highest_revision: i64,
}

impl DataDirCandidate {
    /// Verifies a directory completely; `None` if no cluster can be restored from it.
    pub(crate) async fn verify(data_dir: PathBuf) -> Result<Option<Self>, CommandFailure> {
        let report = health::verify_data_dir(data_dir.clone(), ValidationMode::Full).await?;
        match report.verdict {
            DirVerdict::Valid => {}
            // Not a fallback to the backup: the etcd that runs on it may still be serving.
            DirVerdict::InUse => return health::to_outcome(&data_dir, &report).map(|_| None),
            DirVerdict::Missing | DirVerdict::Corrupt => {
                warn!(reason = %health::describe_faults(&data_dir, &report), "data directory unusable");
                return Ok(None);
            }
        }
        if report
            .warnings
            .iter()
            .any(|warning| warning.what == WarningKind::MemberRemoved)
        {
            warn!("data directory belongs to a removed member, not using it");
            return Ok(None);
        }
        Ok(report.facts.as_ref().map(|facts| Self {
            data_dir,
            revision: facts.revision.0,
            highest_revision: health::highest_revision(facts),
        }))
    }

    /// Returns whether the database is at least as new as the backup.
    pub(crate) fn is_as_new_as(&self, newest_backup: Option<i64>) -> bool {
        // Only the database counts: entries of the WAL are not restored.
        newest_backup.is_none_or(|newest| self.revision >= newest)
    }
}

/// The result of restoring from a data directory.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DataDirRestoreReport {
    /// Revision of the restored state.
    pub(crate) revision: i64,
    /// Revision etcd starts with: higher after `--bump-revision`.
    pub(crate) start_revision: i64,
    /// Highest revision the old member could have reached with its WAL.
    pub(crate) highest_revision: i64,
    pub(crate) from_data_dir: PathBuf,
    pub(crate) database_bytes: u64,
    /// Id of the new cluster in hexadecimal, as etcd prints it.
    pub(crate) cluster_id: String,
    /// Token from which the ids are derived.
    pub(crate) initial_cluster_token: String,
    pub(crate) members: Vec<RestoredMember>,
    pub(crate) seconds: f64,
}

/// Restores a new cluster from a data directory.
pub(crate) async fn restore_from_data_dir(
    candidate: DataDirCandidate,
    seating: NewCluster,
    bump: RevisionBump,
    (fence, now): (Option<VolumeFence>, Timestamp),
) -> Result<CommandOutcome, CommandFailure> {
    let work = tokio::task::spawn_blocking(move || {
        build_member_dirs(&candidate, &seating, bump, (fence.as_ref(), now))
    });
    let reseated = work
        .await
        .map_err(|error| CommandFailure::new(Verdict::Failed, &error))??;
    let text = format!(
        "restored revision {} from data directory {}; the new cluster starts at revision {}\n",
        reseated.revision,
        reseated.from_data_dir.display(),
        reseated.start_revision
    );
    Ok(CommandOutcome::new(Verdict::Restored, text, &reseated))
}

fn build_member_dirs(
    candidate: &DataDirCandidate,
    seating: &NewCluster,
    bump: RevisionBump,
    (fence, now): (Option<&VolumeFence>, Timestamp),
) -> Result<DataDirRestoreReport, CommandFailure> {
    let started = Instant::now();
    let (mut members, mut start_revision) = (Vec::new(), candidate.revision);
    let mut database_bytes = 0;
    // Every directory is built before the first is swapped in: the source may be one of the targets.
    let mut stages = Vec::with_capacity(seating.member_dirs.len());
    for seat in &seating.member_dirs {
        let stage = StagingDir::create(&seat.data_dir)?;
        let db = database_path(stage.path());
        database_bytes = copy_database(&database_path(&candidate.data_dir), &db)?;
        start_revision = assign_identity(&db, seating, bump)?;
        write_raft_files(
            &stage.path().join("member"),
            &seating.membership,
            seat.member.id,
        )?;
        stages.push((seat, stage));
    }
    for (seat, stage) in stages {
        check_fence(fence)?;
        let committed = stage.commit(now)?;
        members.push(RestoredMember {
            name: seat.member.name.clone(),
            id: seat.member.id.to_string(),
            data_dir: committed.target,
            kept: committed.previous_dir,
        });
    }
    info!(
        revision = candidate.revision,
        "restored from data directory"
    );
    Ok(DataDirRestoreReport {
        revision: candidate.revision,
        start_revision,
        highest_revision: candidate.highest_revision,
        from_data_dir: candidate.data_dir.clone(),
        database_bytes,
        cluster_id: seating.membership.cluster_id().to_string(),
        initial_cluster_token: seating.token.clone(),
        members,
        seconds: started.elapsed().as_secs_f64(),
    })
}

fn assign_identity(
    db: &Path,
    seating: &NewCluster,
    bump: RevisionBump,
) -> Result<i64, CommandFailure> {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(db)
        .map_err(|error| disk_failure("failed to open", db, &error))?;
    let info = BootstrapInfo::from_membership(&seating.membership);
    let rows = seating.membership.members_bucket_rows();
    let identity = NewClusterIdentity {
        members: rows
            .into_iter()
            .map(|(id, json)| (id.into(), json.into()))
            .collect(),
        index: info.index,
        term: info.term,
        conf_state: seating.membership.conf_state_json(),
    };
    Ok(finish::write_identity(&file, &identity, bump)?.0)
}

fn copy_database(from: &Path, to: &Path) -> Result<u64, CommandFailure> {
    use std::os::unix::fs::DirBuilderExt as _;
    let folder = to.parent().unwrap_or(to);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| disk_failure("failed to create", folder, &error))?;
    let bytes = fs::copy(from, to).map_err(|error| disk_failure("failed to write", to, &error))?;
    // Synced before the swap: after a crash the target must not have an incomplete database.
    let synced = fs::File::open(to).and_then(|file| file.sync_all());
    synced.map_err(|error| disk_failure("failed to sync", to, &error))?;
    Ok(bytes)
}

fn disk_failure(action: &str, path: &Path, error: &io::Error) -> CommandFailure {
    CommandFailure::from_reason(
        Verdict::Disk,
        format!("{action} {}: {error}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate_at(revision: i64) -> DataDirCandidate {
        DataDirCandidate {
            data_dir: PathBuf::new(),
            revision,
            highest_revision: revision + 5,
        }
    }

    #[test]
    fn data_directory_is_as_new_as_its_database_and_not_its_wal() {
        assert!(candidate_at(10).is_as_new_as(Some(10)));
        assert!(
            !candidate_at(10).is_as_new_as(Some(11)),
            "the WAL may reach 15"
        );
        assert!(candidate_at(10).is_as_new_as(None), "no backup is newer");
    }
}
