//! Opens a database: of a data directory, of a file, or rebuilt from a backup.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstay_archive::chain::choose;
use mainstay_archive::compression::{Compression, open_decoder};
use mainstay_archive::full::{FullDamage, FullLayout, FullScanner, HashCheck};
use mainstay_archive::name::SnapshotName;
use mainstay_datadir::LockError;
use mainstay_store::StoreConfig;
use mainstay_telemetry::ProgressReporter;
use mainstay_verdict::Verdict;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::available_threads;
use crate::backup::Backup;
use crate::cli::CommandContext;
use crate::directory::{chain_bytes, database_path, sample_progress};
use crate::failure::{Classify, CommandFailure};
use crate::rebuild::{DatabaseFile, Durability, Meter, RebuildOptions, rebuild};
use crate::target::TargetArgs;

/// Read size in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// TTL of leases whose TTL is not in the backup; the report does not show it.
const DEFAULT_LEASE_SECONDS: i64 = 3600;

/// An open database.
pub(super) struct InspectedDatabase {
    /// Source as shown to the user.
    pub(super) description: String,
    /// The database file. Its shared lock keeps etcd from opening it.
    pub(super) file: File,
    /// Size of the database without the hash.
    pub(super) bytes: u64,
    /// State of the hash; `None` for a data directory, which never has one.
    pub(super) hash: Option<HashState>,
    /// Verdict if the database is damaged.
    pub(super) damage_verdict: Verdict,
    /// Deleted when the database is closed.
    pub(super) _scratch: Option<tempfile::TempDir>,
}

/// State of the hash of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum HashState {
    /// The hash is present and matches.
    Verified,
    /// The file has no hash: it was copied from a data directory.
    Absent,
}

/// Error of opening a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum InspectError {
    #[error("no database found at {}", path.display())]
    Missing {
        path: PathBuf,
        /// Verdict: a missing data directory, or a wrong path on the command line.
        verdict: Verdict,
    },
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is truncated or damaged", path.display())]
    Damaged { path: PathBuf, source: FullDamage },
    #[error("failed to decompress {}", path.display())]
    Inflate { path: PathBuf, source: io::Error },
    #[error("failed to use the scratch directory")]
    Scratch { source: io::Error },
    #[error("reader thread panicked")]
    Thread,
}

impl Classify for InspectError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Missing { verdict, .. } => *verdict,
            Self::Read { .. } | Self::Scratch { .. } => Verdict::Disk,
            Self::Damaged { .. } | Self::Inflate { .. } => Verdict::DamagedBackup,
            Self::Thread => Verdict::Failed,
        }
    }
}

/// Opens the database of a data directory.
pub(super) fn open_data_dir(data_dir: &Path) -> Result<InspectedDatabase, CommandFailure> {
    let path = database_path(data_dir);
    let (file, bytes) = open_locked(&path, Verdict::Missing)?;
    Ok(InspectedDatabase {
        description: data_dir.display().to_string(),
        file,
        bytes,
        hash: None,
        damage_verdict: Verdict::Corrupt,
        _scratch: None,
    })
}

/// Opens a snapshot or database file; one with the name of a compressed snapshot is decompressed first.
pub(super) fn open_snapshot(
    path: &Path,
    scratch: Option<&Path>,
) -> Result<InspectedDatabase, CommandFailure> {
    let (mut file, mut bytes) = open_locked(path, Verdict::Usage)?;
    let compression = path
        .file_name()
        .and_then(|name| name.to_str()?.parse::<SnapshotName>().ok())
        .map_or(Compression::None, |name| name.compression);
    if compression != Compression::None {
        (file, bytes) = inflate_snapshot(path, file, &compression, scratch)?;
    }
    // A database file copied from a data directory has no hash.
    let layout = verify_hash(path, &file, bytes)?;
    let hash = if layout.is_hashed {
        HashState::Verified
    } else {
        HashState::Absent
    };
    Ok(InspectedDatabase {
        description: path.display().to_string(),
        file,
        bytes: layout.database_bytes,
        hash: Some(hash),
        damage_verdict: Verdict::DamagedBackup,
        _scratch: None,
    })
}

/// Rebuilds the database of a backup in a scratch directory and opens it.
pub(super) async fn open_backup(
    store: &StoreConfig,
    target: &TargetArgs,
    scratch: Option<&Path>,
    context: &CommandContext,
) -> Result<InspectedDatabase, CommandFailure> {
    let backup = Backup::open(store, &context.environment).await?;
    let chain = choose(&backup.catalogue, &target.chain_request())?;
    let directory = create_scratch_dir(scratch)?;
    let meter = Arc::new(Meter::default());
    meter.add_total(chain_bytes(&chain));
    let sources = backup.sources(&meter);
    let options = RebuildOptions {
        stop: target.stop_point(),
        hash_check: HashCheck::Required,
        default_lease_seconds: DEFAULT_LEASE_SECONDS,
        threads: available_threads(),
    };
    let watched = Arc::clone(&meter);
    let progress = ProgressReporter::start("inspect", move || sample_progress(&watched));
    let opened = super::run_blocking(move || {
        let lost = |source| InspectError::Scratch { source };
        let file = tempfile::tempfile_in(directory.path()).map_err(lost)?;
        let database = DatabaseFile {
            file: &file,
            durability: Durability::Scratch,
        };
        let settings = (&options, &*meter);
        rebuild(&chain, &sources, database, directory.path(), settings)?;
        let bytes = file.metadata().map_err(lost)?.len();
        Ok(InspectedDatabase {
            description: format!("{} and {} deltas", chain.base.name, chain.deltas.len()),
            file,
            bytes,
            hash: Some(HashState::Verified),
            damage_verdict: Verdict::DamagedBackup,
            _scratch: Some(directory),
        })
    })
    .await;
    drop(progress);
    opened
}

/// Opens a file with a shared lock: etcd holds an exclusive one, so none uses the file now or starts to.
fn open_locked(path: &Path, missing: Verdict) -> Result<(File, u64), CommandFailure> {
    let read = |source| InspectError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(InspectError::Missing {
                path: path.to_owned(),
                verdict: missing,
            }
            .into());
        }
        Err(error) => return Err(read(error).into()),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let failure = CommandFailure::from(LockError::Held {
                file: path.to_owned(),
            });
            return Err(failure.with_next_step(
                "stop the etcd that uses the database, or take a snapshot with `etcdctl snapshot save` and \
                 inspect the snapshot",
            ));
        }
        Err(errno) => {
            return Err(LockError::Lock {
                file: path.to_owned(),
                source: errno.into(),
            }
            .into());
        }
    }
    let bytes = file.metadata().map_err(read)?.len();
    Ok((file, bytes))
}

fn create_scratch_dir(parent: Option<&Path>) -> Result<tempfile::TempDir, InspectError> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("inspect-");
    match parent {
        Some(parent) => std::fs::create_dir_all(parent).and_then(|()| builder.tempdir_in(parent)),
        None => builder.tempdir(),
    }
    .map_err(|source| InspectError::Scratch { source })
}

fn inflate_snapshot(
    path: &Path,
    stored: File,
    compression: &Compression,
    scratch: Option<&Path>,
) -> Result<(File, u64), InspectError> {
    let lost = |source| InspectError::Scratch { source };
    let damaged = |source| InspectError::Inflate {
        path: path.to_owned(),
        source,
    };
    let directory = create_scratch_dir(scratch)?;
    // An unnamed file outlives its directory and is deleted when it is closed.
    let mut file = tempfile::tempfile_in(directory.path()).map_err(lost)?;
    let mut stream = open_decoder(compression, stored, available_threads())
        .map_err(|error| damaged(io::Error::other(error)))?;
    let mut chunk = vec![0u8; CHUNK_BYTES];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => file
                .write_all(chunk.get(..count).unwrap_or_default())
                .map_err(lost)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(damaged(error)),
        }
    }
    let bytes = file.stream_position().map_err(lost)?;
    Ok((file, bytes))
}

/// Reads the whole file and compares its hash, if it has one.
fn verify_hash(path: &Path, file: &File, bytes: u64) -> Result<FullLayout, InspectError> {
    let path = || path.to_owned();
    let mut scanner = FullScanner::default();
    let mut chunk = vec![0u8; CHUNK_BYTES];
    while scanner.received() < bytes {
        let left = usize::try_from(bytes - scanner.received()).unwrap_or(CHUNK_BYTES);
        let room = chunk.get_mut(..left.min(CHUNK_BYTES)).unwrap_or_default();
        file.read_exact_at(room, scanner.received())
            .map_err(|source| InspectError::Read {
                path: path(),
                source,
            })?;
        scanner.push(room);
    }
    match scanner.finish(HashCheck::Skipped) {
        Ok(full) => Ok(full.layout),
        Err(source) => Err(InspectError::Damaged {
            path: path(),
            source,
        }),
    }
}
