//! Restores the data directories of a cluster: stages them, rebuilds the database, writes the members, swaps them in.
//!
//! A target directory is replaced by rename only after its new content is complete and synced.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use mainstay_archive::catalogue::Catalogue;
use mainstay_archive::chain::SnapshotChain;
use mainstay_datadir::{BootstrapInfo, StagingDir, SwapError, VolumeFence, write_raft_files};
use mainstay_ids::{HashKv, MemberId, Revision};
use mainstay_telemetry::{ProgressReporter, ProgressSample, RESTORE_JOB, format_bytes};
use mainstay_verdict::Verdict;
use serde::Serialize;

use crate::backup::{Backup, StoreObjectSource};
use crate::failure::CommandFailure;
use crate::fallback::{ChainSelection, rebuild_with_fallback};
use crate::members::{MemberDir, NewCluster};
use crate::rebuild::compare::{HashComparison, compare_hash_kv};
use crate::rebuild::finish::{self, NewClusterIdentity, RevisionBump};
use crate::rebuild::{DatabaseFile, Durability, Meter, RebuildOptions, RebuildSummary, rebuild};

/// Input of [`restore`].
#[derive(Clone, Debug)]
pub struct RestorePlan {
    pub selection: ChainSelection,
    pub cluster: NewCluster,
    pub options: RebuildOptions,
    pub bump: RevisionBump,
    /// `HashKV` of a live etcd that the restored database must match.
    pub expected_hash: Option<HashKv>,
    /// Checked before each swap: fails if a later writer took the volume.
    pub fence: Option<VolumeFence>,
    /// Time in the name of the previous directory, which is kept.
    pub now: Timestamp,
}

/// A restored data directory.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RestoredMember {
    pub(crate) name: String,
    /// Member id in hexadecimal, as etcd prints it.
    pub(crate) id: String,
    pub(crate) data_dir: PathBuf,
    /// New path of the previous directory; `None` if there was none.
    pub(crate) kept: Option<PathBuf>,
}

/// The result of a restore.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreReport {
    /// Revision of the restored state.
    pub(crate) revision: i64,
    /// Revision etcd starts with: higher after `--bump-revision`.
    pub(crate) start_revision: i64,
    /// Name of the full snapshot.
    pub(crate) base: String,
    /// Revision of the database in the full snapshot, which may be newer than its name.
    pub(crate) base_revision: i64,
    pub(crate) deltas: usize,
    /// Unusable objects whose revisions other objects covered.
    pub(crate) avoided: Vec<String>,
    pub(crate) revisions_applied: u64,
    pub(crate) events_applied: u64,
    /// Events that were in the full snapshot or an earlier delta already.
    pub(crate) events_skipped: u64,
    /// Leases that were created because the full snapshot does not have them.
    pub(crate) leases_restored: usize,
    /// Those among them that got the default TTL, because no object contains theirs.
    pub(crate) leases_with_default_ttl: usize,
    /// Result of the comparison with a live etcd; `None` without `--expect-hash-kv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hash_kv: Option<HashComparison>,
    /// Stored size of the objects read.
    pub(crate) bytes_read: u64,
    pub(crate) database_bytes: u64,
    /// Id of the new cluster in hexadecimal, as etcd prints it.
    pub(crate) cluster_id: String,
    /// Token from which the ids are derived.
    pub(crate) initial_cluster_token: String,
    pub(crate) members: Vec<RestoredMember>,
    pub(crate) seconds: f64,
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "restored revision {} from {} and {} deltas ({} revisions, {} read) in {:.1} s",
            self.revision,
            self.base,
            self.deltas,
            self.revisions_applied,
            format_bytes(self.bytes_read),
            self.seconds
        )?;
        for name in &self.avoided {
            writeln!(
                f,
                "warning: {name} is unusable; other objects covered its revisions"
            )?;
        }
        if self.start_revision != self.revision {
            writeln!(f, "etcd starts at revision {}", self.start_revision)?;
        }
        if self.leases_with_default_ttl > 0 {
            writeln!(
                f,
                "{} leases got the default TTL: theirs is not in the backup",
                self.leases_with_default_ttl
            )?;
        }
        match self.hash_kv {
            Some(HashComparison::Equal(hash)) => writeln!(
                f,
                "matches the live etcd: HashKV {:08x} at revision {}",
                hash.hash, hash.revision
            )?,
            Some(HashComparison::Compacted { oldest, .. }) => writeln!(
                f,
                "warning: not compared with the live etcd: the backup is compacted at revision {oldest}"
            )?,
            None => {}
        }
        for member in &self.members {
            writeln!(
                f,
                "{} ({}): {}",
                member.name,
                member.id,
                member.data_dir.display()
            )?;
            if let Some(kept) = &member.kept {
                writeln!(f, "  previous data directory: {}", kept.display())?;
            }
        }
        Ok(())
    }
}

/// Restores all directories of the plan.
pub async fn restore(backup: &Backup, plan: RestorePlan) -> Result<RestoreReport, CommandFailure> {
    let meter = Arc::new(Meter::default());
    let sources = backup.sources(&meter);
    let catalogue = backup.catalogue.clone();
    let watched = Arc::clone(&meter);
    let progress = ProgressReporter::start(RESTORE_JOB, move || sample_progress(&watched));
    let inputs = RebuildInputs {
        sources,
        catalogue,
        meter,
    };
    let work = tokio::task::spawn_blocking(move || run_restore(&plan, &inputs));
    let result = work
        .await
        .map_err(|error| CommandFailure::new(Verdict::Failed, &error))?;
    drop(progress);
    result
}

/// Inputs of the rebuild.
struct RebuildInputs {
    sources: StoreObjectSource,
    catalogue: Catalogue,
    meter: Arc<Meter>,
}

/// Returns the stored size of all objects of a chain.
pub(crate) fn chain_bytes(chain: &SnapshotChain) -> u64 {
    chain.base.size
        + chain
            .deltas
            .iter()
            .map(|link| link.object.size)
            .sum::<u64>()
}

/// Converts the meter of a rebuild into a progress sample.
pub(crate) fn sample_progress(meter: &Meter) -> ProgressSample {
    let reading = meter.reading();
    let note = match reading.revision {
        0 => String::new(),
        revision => format!("revision {revision}"),
    };
    ProgressSample {
        total_bytes: reading.total_bytes,
        done_bytes: reading.read_bytes,
        note,
    }
}

fn run_restore(
    plan: &RestorePlan,
    inputs: &RebuildInputs,
) -> Result<RestoreReport, CommandFailure> {
    let started = Instant::now();
    // All directories are staged first, so that an error about a directory shows before the long rebuild.
    let mut stages = Vec::with_capacity(plan.cluster.member_dirs.len());
    for seat in &plan.cluster.member_dirs {
        stages.push((seat, StagingDir::create(&seat.data_dir)?));
    }
    let Some(((first_seat, first_stage), others)) = stages.split_first() else {
        return Err(CommandFailure::from_reason(
            Verdict::Usage,
            "no member to restore",
        ));
    };
    let db = database_path(first_stage.path());
    let built = build_database(plan, inputs, &db)?;
    write_member_raft_files(plan, first_seat, first_stage)?;
    for (seat, stage) in others {
        // The database is the same for all members; only their raft files differ.
        copy_database(&db, &database_path(stage.path()))?;
        write_member_raft_files(plan, seat, stage)?;
    }
    let database_bytes = fs::metadata(&db)
        .map_err(|error| disk_failure("failed to read", &db, &error))?
        .len();
    let mut members = Vec::with_capacity(stages.len());
    for (seat, stage) in stages {
        check_fence(plan.fence.as_ref())?;
        let committed = stage
            .commit(plan.now)
            .map_err(|error| commit_failure(error, plan, &members))?;
        members.push(RestoredMember {
            name: seat.member.name.clone(),
            id: seat.member.id.to_string(),
            data_dir: committed.target,
            kept: committed.previous_dir,
        });
    }
    let mut restored = build_report(plan, &built, members);
    restored.database_bytes = database_bytes;
    restored.seconds = started.elapsed().as_secs_f64();
    Ok(restored)
}

/// Checks, right before a swap, that no later writer took the volume.
pub(crate) fn check_fence(fence: Option<&VolumeFence>) -> Result<(), CommandFailure> {
    Ok(fence.map_or(Ok(()), VolumeFence::check)?)
}

/// Adds the members that were swapped in before the failure, and their token: they stay in place, and a retry for the
/// others needs the same token.
fn commit_failure(
    error: SwapError,
    plan: &RestorePlan,
    swapped: &[RestoredMember],
) -> CommandFailure {
    CommandFailure::from(error).with_details(serde_json::json!({
        "restoredBefore": swapped,
        "initialClusterToken": plan.cluster.token,
    }))
}

/// A finished database.
struct BuiltDatabase {
    rebuilt: RebuildSummary,
    selection: ChainSelection,
    start_revision: Revision,
    comparison: Option<HashComparison>,
}

fn build_database(
    plan: &RestorePlan,
    inputs: &RebuildInputs,
    db: &Path,
) -> Result<BuiltDatabase, CommandFailure> {
    let folder = db.parent().unwrap_or(db);
    create_private_dirs(folder)
        .map_err(|error| disk_failure("failed to create", folder, &error))?;
    let file =
        create_private_file(db).map_err(|error| disk_failure("failed to create", db, &error))?;
    let target = DatabaseFile {
        file: &file,
        durability: Durability::Durable,
    };
    let settings = (&plan.options, &*inputs.meter);
    let attempt = |chain: &SnapshotChain| {
        // A fallback reads another chain from its beginning.
        inputs.meter.reset(chain_bytes(chain));
        rebuild(chain, &inputs.sources, target, folder, settings)
    };
    let (rebuilt, selection) =
        rebuild_with_fallback(plan.selection.clone(), &inputs.catalogue, &file, attempt)?;
    // Before the members are written: the hash covers the keys as the live etcd had them, without a bump.
    let comparison = match plan.expected_hash {
        Some(expected) => Some(compare_hash_kv(&file, expected)?),
        None => None,
    };
    let membership = &plan.cluster.membership;
    let info = BootstrapInfo::from_membership(membership);
    let members = membership.members_bucket_rows();
    let identity = NewClusterIdentity {
        members: members
            .into_iter()
            .map(|(id, json)| (id.into(), json.into()))
            .collect(),
        index: info.index,
        term: info.term,
        conf_state: membership.conf_state_json(),
    };
    let start_revision = finish::write_identity(&file, &identity, plan.bump)?;
    Ok(BuiltDatabase {
        rebuilt,
        selection,
        start_revision,
        comparison,
    })
}

fn write_member_raft_files(
    plan: &RestorePlan,
    seat: &MemberDir,
    stage: &StagingDir,
) -> Result<(), CommandFailure> {
    let member: MemberId = seat.member.id;
    write_raft_files(
        &stage.path().join("member"),
        &plan.cluster.membership,
        member,
    )?;
    Ok(())
}

/// Returns the path of the database in a data directory.
pub(crate) fn database_path(data_dir: &Path) -> PathBuf {
    data_dir.join("member/snap/db")
}

fn create_private_dirs(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

/// Creates a file that only its owner can read, as etcd does.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn copy_database(from: &Path, to: &Path) -> Result<(), CommandFailure> {
    let copy = || {
        create_private_dirs(to.parent().unwrap_or(to))?;
        fs::copy(from, to)?;
        // Synced before the swap: after a crash the target must not have an incomplete database.
        File::open(to)?.sync_all()
    };
    copy().map_err(|error: io::Error| disk_failure("failed to write", to, &error))
}

fn disk_failure(action: &str, path: &Path, error: &io::Error) -> CommandFailure {
    CommandFailure::from_reason(
        Verdict::Disk,
        format!("{action} {}: {error}", path.display()),
    )
}

fn build_report(
    plan: &RestorePlan,
    built: &BuiltDatabase,
    members: Vec<RestoredMember>,
) -> RestoreReport {
    let BuiltDatabase {
        rebuilt, selection, ..
    } = built;
    let unknown = rebuilt
        .new_leases
        .iter()
        .filter(|lease| !lease.is_ttl_known)
        .count();
    RestoreReport {
        revision: rebuilt.revision.0,
        start_revision: built.start_revision.0,
        base: selection.chain.base.name.to_string(),
        base_revision: rebuilt.base_revision.0,
        deltas: selection.chain.deltas.len(),
        avoided: selection.avoided().to_vec(),
        revisions_applied: rebuilt.revisions_applied,
        events_applied: rebuilt.events_applied,
        events_skipped: rebuilt.events_skipped,
        leases_restored: rebuilt.new_leases.len(),
        leases_with_default_ttl: unknown,
        hash_kv: built.comparison,
        bytes_read: chain_bytes(&selection.chain),
        database_bytes: 0,
        cluster_id: plan.cluster.membership.cluster_id().to_string(),
        initial_cluster_token: plan.cluster.token.clone(),
        members,
        seconds: 0.0,
    }
}
