//! Observes the data directory: its owner, whether etcd can start on it, and its revision.

use std::io;
use std::path::{Path, PathBuf};

use mainstay_datadir::{
    CleanStop, CleanStopError, DirFacts, DirReport, DirVerdict, GuardStatus, WarningKind,
    check_volume_guard,
};
use mainstay_ids::{ClusterId, MemberId};
use mainstay_telemetry::ErrorChain;
use mainstay_verdict::{DataDirSummary, DataState, Verdict, VerificationDepth};
use tracing::{debug, info};

use super::cluster::strip_scheme;
use crate::failure::{Classify, CommandFailure};
use crate::health::{self, ValidationMode};

/// Default member name of etcd, which a restore of a single member uses as well.
const DEFAULT_MEMBER_NAME: &str = "default";

/// The expected owner of the data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedOwner<'a> {
    /// Namespace of the pod; `None` skips the check of the volume.
    pub(crate) namespace: Option<&'a str>,
    /// Name of the member.
    pub(crate) member: &'a str,
    /// Advertised peer URLs of the member.
    pub(crate) peer_urls: &'a [String],
}

/// Error of accessing a data directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DataError {
    /// A symbolic link points to a missing file. The data may be elsewhere, so it does not count as missing.
    #[error("{} is a symbolic link to {}, which does not exist", path.display(), target.display())]
    DanglingLink { path: PathBuf, target: PathBuf },
    #[error("failed to read {}", path.display())]
    Metadata { path: PathBuf, source: io::Error },
}

impl Classify for DataError {
    fn verdict(&self) -> Verdict {
        Verdict::Disk
    }
}

/// Observed data directory.
#[derive(Clone, Debug)]
pub(crate) struct ObservedDataDir {
    /// Input of the decision and part of the report.
    pub(crate) summary: DataDirSummary,
    pub(crate) member_id: Option<MemberId>,
    pub(crate) cluster_id: Option<ClusterId>,
    /// Description of what is wrong; `None` if nothing is.
    pub(crate) faults: Option<String>,
}

impl ObservedDataDir {
    fn from_state(state: DataState, faults: Option<String>) -> Self {
        Self {
            summary: DataDirSummary::from_state(state),
            member_id: None,
            cluster_id: None,
            faults,
        }
    }
}

/// Whether the clean-shutdown marker may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CleanStopUse {
    /// Remove it and use it: etcd starts next.
    Consume,
    /// Keep it and ignore it: a dry run changes nothing.
    Ignore,
}

/// Verifies the directory: a quick check after a clean shutdown without changes since, all of it otherwise.
pub(crate) async fn observe_data_dir(
    data_dir: &Path,
    owner: ExpectedOwner<'_>,
    note: CleanStopUse,
) -> Result<ObservedDataDir, CommandFailure> {
    check_links(data_dir)?;
    // Before anything is read: the data of another namespace is none of ours.
    if let Some(namespace) = owner.namespace
        && let GuardStatus::Mismatch { found } = check_volume_guard(data_dir, namespace)?
    {
        let message = format!("volume belongs to namespace {found:?}, expected {namespace:?}");
        return Ok(ObservedDataDir::from_state(
            DataState::Foreign,
            Some(message),
        ));
    }
    let mode = match note {
        CleanStopUse::Consume => choose_validation_mode(data_dir).await?,
        CleanStopUse::Ignore => ValidationMode::Full,
    };
    info!(?mode, "verifying the data directory");
    let report = health::verify_data_dir(data_dir.to_owned(), mode).await?;
    let seen = summarize_report(data_dir, &report, mode);
    let mismatch = report
        .facts
        .as_ref()
        .and_then(|facts| describe_other_owner(facts, owner));
    Ok(match mismatch {
        Some(message) => ObservedDataDir {
            summary: DataDirSummary {
                state: DataState::Foreign,
                ..seen.summary
            },
            faults: Some(message),
            ..seen
        },
        None => seen,
    })
}

/// Refuses dangling symbolic links, which would look like missing data.
fn check_links(data_dir: &Path) -> Result<(), DataError> {
    let parts = ["member", "member/snap", "member/snap/db", "member/wal"];
    let parts = parts.map(|part| data_dir.join(part));
    // A path with a trailing slash names the target of the link, and read_link would not see the link.
    let folder = data_dir.components().as_path().to_owned();
    for path in std::iter::once(folder).chain(parts) {
        // Not a link, or missing: the verification reports it.
        let Ok(target) = std::fs::read_link(&path) else {
            continue;
        };
        match std::fs::metadata(&path) {
            Ok(_) => {}
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                return Err(DataError::DanglingLink { path, target });
            }
            Err(source) => return Err(DataError::Metadata { path, source }),
        }
    }
    Ok(())
}

/// Returns a description of the owner if the data belongs to another member: both name *and* peer URLs differ. One of
/// them alone may have been changed on purpose.
fn describe_other_owner(facts: &DirFacts, owner: ExpectedOwner<'_>) -> Option<String> {
    let id = facts.member_id?;
    let entry = facts.members.iter().find(|member| member.id == id)?;
    // A member has no name before its first start, and the default name after a restore without --name.
    let is_called_so = ["", DEFAULT_MEMBER_NAME, owner.member].contains(&entry.name.as_str());
    let is_own = |url: &String| {
        owner
            .peer_urls
            .iter()
            .any(|own| strip_scheme(own) == strip_scheme(url))
    };
    if is_called_so || entry.peer_urls.iter().any(is_own) {
        return None;
    }
    Some(format!(
        "data belongs to member {:?} at {}, expected {:?}",
        entry.name,
        entry.peer_urls.join(", "),
        owner.member
    ))
}

/// Takes the clean-shutdown marker. Without a usable marker, or if the data has changed since, the verification is full.
async fn choose_validation_mode(data_dir: &Path) -> Result<ValidationMode, CommandFailure> {
    let data_dir = data_dir.to_owned();
    let work = tokio::task::spawn_blocking(move || {
        let note = CleanStop::take(&data_dir)?;
        Ok::<_, CleanStopError>(note.is_some_and(|note| note.is_valid_for(&data_dir)))
    });
    let taken = work
        .await
        .map_err(|error| CommandFailure::new(Verdict::Failed, &error))?;
    match taken {
        Ok(true) => Ok(ValidationMode::Sanity),
        Ok(false) => Ok(ValidationMode::Full),
        Err(error) => {
            debug!(error = %ErrorChain(&error), "clean-shutdown marker unusable");
            Ok(ValidationMode::Full)
        }
    }
}

fn summarize_report(data_dir: &Path, report: &DirReport, mode: ValidationMode) -> ObservedDataDir {
    let is_removed = report
        .warnings
        .iter()
        .any(|warning| warning.what == WarningKind::MemberRemoved);
    // etcd refuses to run on the data of a removed member, even if the directory is valid.
    let state = match report.verdict {
        DirVerdict::Valid if is_removed => DataState::Removed,
        DirVerdict::Valid => DataState::Sound,
        DirVerdict::Missing => DataState::Missing,
        DirVerdict::Corrupt => DataState::Corrupt,
        DirVerdict::InUse => DataState::InUse,
    };
    let facts = report.facts.as_ref();
    let summary = DataDirSummary {
        state,
        verified: facts.map(|_| match mode {
            ValidationMode::Full => VerificationDepth::Full,
            ValidationMode::Sanity => VerificationDepth::Quick,
        }),
        revision: facts.map(|facts| facts.revision.0),
        highest_revision: facts.map(health::highest_revision),
        history: None,
        member_id: facts.and_then(|facts| Some(facts.member_id?.to_string())),
        cluster_id: facts.and_then(|facts| Some(facts.cluster_id?.to_string())),
    };
    ObservedDataDir {
        summary,
        member_id: facts.and_then(|facts| facts.member_id),
        cluster_id: facts.and_then(|facts| facts.cluster_id),
        faults: (!report.is_valid()).then(|| health::describe_faults(data_dir, report)),
    }
}

#[cfg(test)]
mod tests;
