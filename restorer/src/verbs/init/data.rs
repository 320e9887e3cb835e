//! The data directory as init sees it: whose it is, whether etcd can start on it, what it holds.

use std::io;
use std::path::{Path, PathBuf};

use mainstay_datadir::{
    CleanStop, CleanStopError, DirFacts, DirVerdict, GuardStatus, DirReport, WarningKind, check_volume_guard,
};
use mainstay_ids::{ClusterId, MemberId};
use mainstay_telemetry::ErrorChain;
use mainstay_verdict::{DataDirSummary, DataState, VerificationDepth};
use tracing::{debug, info};

use super::cluster::strip_scheme;
use crate::failure::{Classify, CommandFailure, ExitVerdict};
use crate::health::{self, ValidationMode};

/// What etcd is called where nobody gave it a name, as in a restore of one member.
const DEFAULT_MEMBER_NAME: &str = "default";

/// Whose the data has to be.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedOwner<'a> {
    /// The namespace of the pod, where it is known.
    pub namespace: Option<&'a str>,
    /// The name of the member.
    pub member: &'a str,
    /// Where the member announces itself.
    pub peer_urls: &'a [String],
}

/// Why a data directory cannot even be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A link leads nowhere. Data that is elsewhere is not missing.
    #[error("{} is a link to {}, and nothing is there", path.display(), target.display())]
    DanglingLink {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// It cannot be told what is there.
    #[error("look at {}", path.display())]
    Metadata {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Classify for DataError {
    fn verdict(&self) -> ExitVerdict {
        ExitVerdict::Disk
    }
}

/// A data directory that was looked at.
#[derive(Clone, Debug)]
pub struct ObservedDataDir {
    /// For the decision and the report.
    pub summary: DataDirSummary,
    /// Whose it is.
    pub member_id: Option<MemberId>,
    /// Of which cluster.
    pub cluster_id: Option<ClusterId>,
    /// What is wrong, in words.
    pub faults: Option<String>,
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

/// Whether the note of an orderly stop may be used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanStopUse {
    /// It is taken: etcd starts next.
    Consume,
    /// It stays, unused: nothing is to change.
    Ignore,
}

/// Looks at the directory: quickly when etcd has ended in order and nothing has changed since, thoroughly otherwise.
pub async fn observe_data_dir(data_dir: &Path, owner: ExpectedOwner<'_>, note: CleanStopUse) -> Result<ObservedDataDir, CommandFailure> {
    check_links(data_dir)?;
    if let Some(namespace) = owner.namespace
        && let GuardStatus::Mismatch { found } = check_volume_guard(data_dir, namespace)?
    {
        let words = format!("the volume belongs to namespace {found:?}, not to {namespace:?}");
        return Ok(ObservedDataDir::from_state(DataState::Foreign, Some(words)));
    }
    let mode = match note {
        CleanStopUse::Consume => choose_validation_mode(data_dir).await?,
        CleanStopUse::Ignore => ValidationMode::Full,
    };
    info!(?mode, "the data directory is verified");
    let report = health::verify_data_dir(data_dir.to_owned(), mode).await?;
    let seen = summarize_report(data_dir, &report, mode);
    let stranger = report
        .facts
        .as_ref()
        .and_then(|facts| describe_other_owner(facts, owner));
    Ok(match stranger {
        Some(words) => ObservedDataDir {
            summary: DataDirSummary {
                state: DataState::Foreign,
                ..seen.summary
            },
            faults: Some(words),
            ..seen
        },
        None => seen,
    })
}

/// Refuses links that lead nowhere, which would look like data that is not there.
fn check_links(data_dir: &Path) -> Result<(), DataError> {
    let parts = ["member", "member/snap", "member/snap/db", "member/wal"];
    let parts = parts.map(|part| data_dir.join(part));
    // With a slash behind it, the name would be that of what the link leads to.
    let folder = data_dir.components().as_path().to_owned();
    for path in std::iter::once(folder).chain(parts) {
        // What is no link, or not there, is for the verification to judge.
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

/// Words about whose data it is, if it is another member's: called otherwise *and* reached elsewhere, since a name or an
/// address alone may have been changed on purpose.
fn describe_other_owner(facts: &DirFacts, owner: ExpectedOwner<'_>) -> Option<String> {
    let id = facts.member_id?;
    let entry = facts.members.iter().find(|member| member.id == id)?;
    let is_called_so = ["", DEFAULT_MEMBER_NAME, owner.member].contains(&entry.name.as_str());
    let is_own = |url: &String| owner.peer_urls.iter().any(|own| strip_scheme(own) == strip_scheme(url));
    if is_called_so || entry.peer_urls.iter().any(is_own) {
        return None;
    }
    Some(format!(
        "the data is that of the member {:?} at {}, not of {:?}",
        entry.name,
        entry.peer_urls.join(", "),
        owner.member
    ))
}

/// A note counts once, and only while nothing has changed; whatever goes wrong with it means a full verification.
async fn choose_validation_mode(data_dir: &Path) -> Result<ValidationMode, CommandFailure> {
    let data_dir = data_dir.to_owned();
    let work = tokio::task::spawn_blocking(move || {
        let note = CleanStop::take(&data_dir)?;
        Ok::<_, CleanStopError>(note.is_some_and(|note| note.is_valid_for(&data_dir)))
    });
    let taken = work
        .await
        .map_err(|error| CommandFailure::new(ExitVerdict::Failed, &error))?;
    match taken {
        Ok(true) => Ok(ValidationMode::Sanity),
        Ok(false) => Ok(ValidationMode::Full),
        Err(error) => {
            debug!(error = %ErrorChain(&error), "the note of an orderly stop cannot be used");
            Ok(ValidationMode::Full)
        }
    }
}

fn summarize_report(data_dir: &Path, report: &DirReport, mode: ValidationMode) -> ObservedDataDir {
    let is_removed = report
        .warnings
        .iter()
        .any(|warning| warning.what == WarningKind::MemberRemoved);
    let state = match report.verdict {
        DirVerdict::Valid if is_removed => DataState::Removed,
        DirVerdict::Valid => DataState::Sound,
        DirVerdict::Missing => DataState::Missing,
        DirVerdict::Corrupt => DataState::Corrupt,
        DirVerdict::InUse => DataState::InUse,
    };
    let facts = report.facts.as_ref();
    let data = DataDirSummary {
        state,
        verified: facts.map(|_| match mode {
            ValidationMode::Full => VerificationDepth::Full,
            ValidationMode::Sanity => VerificationDepth::Quick,
        }),
        revision: facts.map(|facts| facts.revision.0),
        highest_revision: facts.map(health::highest_revision),
        member_id: facts.and_then(|facts| Some(facts.member_id?.to_string())),
        cluster_id: facts.and_then(|facts| Some(facts.cluster_id?.to_string())),
    };
    ObservedDataDir {
        summary: data,
        member_id: facts.and_then(|facts| facts.member_id),
        cluster_id: facts.and_then(|facts| facts.cluster_id),
        faults: (!report.is_valid()).then(|| health::describe_faults(data_dir, report)),
    }
}

#[cfg(test)]
mod tests;
