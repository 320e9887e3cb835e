//! The data directory as init sees it: whose it is, whether etcd can start on it, what it holds.

use std::io;
use std::path::{Path, PathBuf};

use mainstay_datadir::{
    CleanStop, CleanStopError, DirFacts, DirVerdict, Guard, Report, WarningKind, check_guard,
};
use mainstay_ids::{ClusterId, MemberId};
use mainstay_telemetry::Chain;
use mainstay_verdict::{Data, DataState, Thoroughness};
use tracing::{debug, info};

use super::cluster::place;
use crate::failure::{Classify, Failure, Verdict};
use crate::health::{self, ValidationMode};

/// What etcd is called where nobody gave it a name, as in a restore of one member.
const UNNAMED: &str = "default";

/// Whose the data has to be.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
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
    Dangling {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// It cannot be told what is there.
    #[error("look at {}", path.display())]
    Look {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Classify for DataError {
    fn verdict(&self) -> Verdict {
        Verdict::Disk
    }
}

/// A data directory that was looked at.
#[derive(Clone, Debug)]
pub struct SeenData {
    /// For the decision and the report.
    pub data: Data,
    /// Whose it is.
    pub member: Option<MemberId>,
    /// Of which cluster.
    pub cluster: Option<ClusterId>,
    /// What is wrong, in words.
    pub faults: Option<String>,
}

impl SeenData {
    fn of(state: DataState, faults: Option<String>) -> Self {
        Self {
            data: Data::of(state),
            member: None,
            cluster: None,
            faults,
        }
    }
}

/// Whether the note of an orderly stop may be used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// It is taken: etcd starts next.
    Take,
    /// It stays, unused: nothing is to change.
    Leave,
}

/// Looks at the directory: quickly when etcd has ended in order and nothing has changed since, thoroughly otherwise.
pub async fn observe(data_dir: &Path, owner: Owner<'_>, note: Note) -> Result<SeenData, Failure> {
    follow_links(data_dir)?;
    if let Some(namespace) = owner.namespace
        && let Guard::Mismatch { found } = check_guard(data_dir, namespace)?
    {
        let words = format!("the volume belongs to namespace {found:?}, not to {namespace:?}");
        return Ok(SeenData::of(DataState::Foreign, Some(words)));
    }
    let mode = match note {
        Note::Take => choose_mode(data_dir).await?,
        Note::Leave => ValidationMode::Full,
    };
    info!(?mode, "the data directory is verified");
    let report = health::examine(data_dir.to_owned(), mode).await?;
    let seen = seen(data_dir, &report, mode);
    let stranger = report
        .facts
        .as_ref()
        .and_then(|facts| of_another(facts, owner));
    Ok(match stranger {
        Some(words) => SeenData {
            data: Data {
                state: DataState::Foreign,
                ..seen.data
            },
            faults: Some(words),
            ..seen
        },
        None => seen,
    })
}

/// Refuses links that lead nowhere, which would look like data that is not there.
fn follow_links(data_dir: &Path) -> Result<(), DataError> {
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
                return Err(DataError::Dangling { path, target });
            }
            Err(source) => return Err(DataError::Look { path, source }),
        }
    }
    Ok(())
}

/// Words about whose data it is, if it is another member's: called otherwise *and* reached elsewhere, since a name or an
/// address alone may have been changed on purpose.
fn of_another(facts: &DirFacts, owner: Owner<'_>) -> Option<String> {
    let id = facts.member_id?;
    let entry = facts.members.iter().find(|member| member.id == id)?;
    let is_called_so = ["", UNNAMED, owner.member].contains(&entry.name.as_str());
    let is_own = |url: &String| owner.peer_urls.iter().any(|own| place(own) == place(url));
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
async fn choose_mode(data_dir: &Path) -> Result<ValidationMode, Failure> {
    let data_dir = data_dir.to_owned();
    let work = tokio::task::spawn_blocking(move || {
        let note = CleanStop::take(&data_dir)?;
        Ok::<_, CleanStopError>(note.is_some_and(|note| note.still_holds(&data_dir)))
    });
    let taken = work
        .await
        .map_err(|error| Failure::new(Verdict::Failed, &error))?;
    match taken {
        Ok(true) => Ok(ValidationMode::Sanity),
        Ok(false) => Ok(ValidationMode::Full),
        Err(error) => {
            debug!(error = %Chain(&error), "the note of an orderly stop cannot be used");
            Ok(ValidationMode::Full)
        }
    }
}

fn seen(data_dir: &Path, report: &Report, mode: ValidationMode) -> SeenData {
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
    let data = Data {
        state,
        verified: facts.map(|_| match mode {
            ValidationMode::Full => Thoroughness::Full,
            ValidationMode::Sanity => Thoroughness::Quick,
        }),
        revision: facts.map(|facts| facts.revision.0),
        highest_revision: facts.map(health::highest_revision),
        member_id: facts.and_then(|facts| Some(facts.member_id?.to_string())),
        cluster_id: facts.and_then(|facts| Some(facts.cluster_id?.to_string())),
    };
    SeenData {
        data,
        member: facts.and_then(|facts| facts.member_id),
        cluster: facts.and_then(|facts| facts.cluster_id),
        faults: (!report.is_valid()).then(|| health::reason(data_dir, report)),
    }
}

#[cfg(test)]
mod tests;
