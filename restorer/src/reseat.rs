//! A new cluster from the data directory of an old member: the same keys and revisions, other identities.
//!
//! What a member of a cluster without a quorum holds may be newer than the backup. Its database is copied beside the
//! target, given its new members, and swapped in like a restored one. Entries only the log holds are not taken: nobody
//! knows which of them a quorum had agreed on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use jiff::Timestamp;
use mainstay_datadir::{BootstrapInfo, DirVerdict, VolumeFence, StagingDir, WarningKind, write_raft_files};
use serde::Serialize;
use tracing::{info, warn};

use crate::directory::{RestoredMember, check_fence, database_path};
use crate::failure::{CommandFailure, ExitVerdict};
use crate::health::{self, ValidationMode};
use crate::members::NewCluster;
use crate::outcome::CommandOutcome;
use crate::rebuild::finish::{self, RevisionBump, NewClusterIdentity};

/// A directory a cluster can be made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDirCandidate {
    /// Where.
    pub data_dir: PathBuf,
    /// The newest revision of its database.
    pub revision: i64,
    /// The newest revision its log promises.
    pub highest_revision: i64,
}

impl DataDirCandidate {
    /// Looks at a directory thoroughly; `None` when no cluster can be made from it.
    pub async fn verify(data_dir: PathBuf) -> Result<Option<Self>, CommandFailure> {
        let report = health::verify_data_dir(data_dir.clone(), ValidationMode::Full).await?;
        match report.verdict {
            DirVerdict::Valid => {}
            DirVerdict::InUse => return health::to_outcome(&data_dir, &report).map(|_| None),
            DirVerdict::Missing | DirVerdict::Corrupt => {
                warn!(reason = %health::describe_faults(&data_dir, &report), "the data directory cannot be used");
                return Ok(None);
            }
        }
        if report
            .warnings
            .iter()
            .any(|warning| warning.what == WarningKind::MemberRemoved)
        {
            warn!("the data directory is of a member that was removed, and is not used");
            return Ok(None);
        }
        Ok(report.facts.as_ref().map(|facts| Self {
            data_dir,
            revision: facts.revision.0,
            highest_revision: health::highest_revision(facts),
        }))
    }

    /// Whether it holds at least what the backup promises.
    pub fn is_as_new_as(&self, newest_backup: Option<i64>) -> bool {
        newest_backup.is_none_or(|newest| self.revision >= newest)
    }
}

/// What was made of a data directory.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataDirRestoreReport {
    /// The revision of the state taken over.
    pub revision: i64,
    /// The revision etcd starts with: higher when it was bumped.
    pub start_revision: i64,
    /// The newest revision the old log promised.
    pub highest_revision: i64,
    /// The directory it was made of.
    pub from_data_dir: PathBuf,
    /// Bytes of the database.
    pub database_bytes: u64,
    /// Id of the new cluster, as etcd prints it.
    pub cluster_id: String,
    /// The token the ids were made with.
    pub initial_cluster_token: String,
    /// The directories.
    pub members: Vec<RestoredMember>,
    /// How long it took.
    pub seconds: f64,
}

/// Makes a new cluster of a directory.
pub async fn restore_from_data_dir(
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
        .map_err(|error| CommandFailure::new(ExitVerdict::Failed, &error))??;
    let text = format!(
        "took revision {} over from {}, as a new cluster that starts at revision {}\n",
        reseated.revision,
        reseated.from_data_dir.display(),
        reseated.start_revision
    );
    Ok(CommandOutcome::new(ExitVerdict::Restored, text, &reseated))
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
    // Every directory is built before the first is swapped in: the old one may be one of them.
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
        "a data directory was taken over"
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

fn assign_identity(db: &Path, seating: &NewCluster, bump: RevisionBump) -> Result<i64, CommandFailure> {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(db)
        .map_err(|error| disk_failure("open", db, &error))?;
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
        .map_err(|error| disk_failure("create", folder, &error))?;
    let bytes = fs::copy(from, to).map_err(|error| disk_failure("write", to, &error))?;
    let synced = fs::File::open(to).and_then(|file| file.sync_all());
    synced.map_err(|error| disk_failure("sync", to, &error))?;
    Ok(bytes)
}

fn disk_failure(doing: &str, path: &Path, error: &io::Error) -> CommandFailure {
    CommandFailure::from_reason(
        ExitVerdict::Disk,
        format!("{doing} {}: {error}", path.display()),
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
    fn a_directory_counts_by_its_database_and_not_by_its_log() {
        assert!(candidate_at(10).is_as_new_as(Some(10)));
        assert!(!candidate_at(10).is_as_new_as(Some(11)), "the log may promise 15");
        assert!(candidate_at(10).is_as_new_as(None), "there is nothing newer");
    }
}
