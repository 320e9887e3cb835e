//! The data directory as init sees it: whose it is, whether etcd can start on it, what it holds.

use std::path::Path;

use steward_datadir::{
    CleanStop, CleanStopError, DirVerdict, Guard, Report, WarningKind, check_guard,
};
use steward_ids::{ClusterId, MemberId};
use steward_telemetry::Chain;
use steward_verdict::{Data, DataState, Thoroughness};
use tracing::{debug, info};

use crate::failure::{Failure, Verdict};
use crate::health::{self, ValidationMode};

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
pub async fn observe(
    data_dir: &Path,
    namespace: Option<&str>,
    note: Note,
) -> Result<SeenData, Failure> {
    if let Some(namespace) = namespace
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
    Ok(seen(data_dir, &report, mode))
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
