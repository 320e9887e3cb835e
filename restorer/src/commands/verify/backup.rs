//! `verify` of a backup: reads objects in parallel, then checks that the chain is complete.

use std::fmt::Write as _;
use std::sync::Arc;

use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::chain::{
    ChainRequest, ChooseError, SnapshotChain, choose, restorable_revisions,
};
use mainstay_backup::prove::{DeltaSpan, ReachedState, check_chain};
use mainstay_backup::{ObjectProof, ProofError, ReadOptions, StopPoint};
use mainstay_mvcc::DatabaseStatus;
use mainstay_store::StoreConfig;
use mainstay_telemetry::{ProgressReporter, format_bytes};
use mainstay_verdict::Verdict;
use serde::Serialize;
use serde_json::{Value, json};

use super::pool::{ObjectCheck, check_all_objects};
use crate::available_threads;
use crate::backup::Backup;
use crate::cli::CommandContext;
use crate::directory::sample_progress;
use crate::failure::{Classify, CommandFailure};
use crate::outcome::CommandOutcome;
use crate::rebuild::{HashCheck, Meter};
use crate::target::TargetArgs;

/// Objects to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerifyScope {
    /// The objects a restore would use.
    Chain,
    /// Every object of the backup.
    Prefix,
}

/// Input of [`verify`].
#[derive(Clone, Debug)]
pub(crate) struct VerifyRequest {
    pub(crate) store: StoreConfig,
    pub(crate) target: TargetArgs,
    pub(crate) scope: VerifyScope,
    /// Whether a full snapshot without a hash is accepted.
    pub(crate) hash_check: HashCheck,
}

/// Report about one object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectReport {
    name: String,
    key: String,
    bytes: u64,
    is_in_chain: bool,
    is_sound: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    #[serde(flatten)]
    contents: Option<ContentsReport>,
}

/// Verified content of an object.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", untagged)]
enum ContentsReport {
    #[serde(rename_all = "camelCase")]
    Full {
        revision: i64,
        compact_revision: Option<i64>,
        content_bytes: u64,
        is_hashed: bool,
    },
    #[serde(rename_all = "camelCase")]
    Delta {
        first_revision: Option<i64>,
        last_revision: Option<i64>,
        events: u64,
        content_bytes: u64,
        first_time: String,
        last_time: String,
    },
}

/// Verifies a backup.
///
/// # Errors
/// A [`CommandFailure`] whose verdict says whether the backup is damaged, incomplete, or cannot be read.
pub(crate) async fn verify(
    request: VerifyRequest,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let VerifyRequest {
        store,
        target,
        scope,
        hash_check,
    } = request;
    let backup = Backup::open(&store, &context.environment).await?;
    let chosen = choose(&backup.catalogue, &target.chain_request());
    let objects = match (&chosen, scope) {
        // With --all the objects are read even if they form no chain to the target.
        (Err(ChooseError::NoSnapshots), _) | (Err(_), VerifyScope::Chain) => {
            return Err(choose_failure(chosen));
        }
        (_, VerifyScope::Prefix) => backup
            .catalogue
            .fulls
            .iter()
            .chain(&backup.catalogue.deltas)
            .cloned()
            .collect(),
        (Ok(chain), VerifyScope::Chain) => list_chain_objects(chain),
    };
    let options = ReadOptions {
        hash_check,
        stop: target.stop_point(),
        threads: available_threads(),
    };
    let meter = Arc::new(Meter::default());
    meter.add_total(
        objects
            .iter()
            .map(|object: &SnapshotObject| object.size)
            .sum(),
    );
    let sources = backup.sources(&meter);
    let progress = ProgressReporter::start("verify", move || sample_progress(&meter));
    let work = tokio::task::spawn_blocking(move || check_all_objects(&objects, &sources, &options));
    let findings = work
        .await
        .map_err(|error| CommandFailure::new(Verdict::Failed, &error))?;
    drop(progress);
    build_outcome(&backup.catalogue, &target, chosen, &findings)
}

fn choose_failure(chosen: Result<SnapshotChain, ChooseError>) -> CommandFailure {
    match chosen {
        Ok(_) => CommandFailure::from_reason(Verdict::Failed, "nothing to verify"),
        Err(error) => error.into(),
    }
}

fn list_chain_objects(chain: &SnapshotChain) -> Vec<SnapshotObject> {
    let deltas = chain.deltas.iter().map(|link| link.object.clone());
    std::iter::once(chain.base.clone()).chain(deltas).collect()
}

/// Turns the findings into a verdict.
fn build_outcome(
    catalogue: &Catalogue,
    target: &TargetArgs,
    chosen: Result<SnapshotChain, ChooseError>,
    findings: &[ObjectCheck],
) -> Result<CommandOutcome, CommandFailure> {
    // An outage of the store says nothing about the backup, so it is never reported as damage.
    if let Some(failure) = find_store_failure(findings) {
        return Err(failure);
    }
    let reports = build_object_reports(chosen.as_ref().ok(), findings);
    let is_damaged = findings.iter().any(|finding| finding.contents.is_err());
    let verified = match &chosen {
        Ok(chain) => follow_chain(chain, findings, target.stop_point()),
        Err(_) => None,
    };
    if is_damaged {
        return Err(build_damage_failure(
            catalogue,
            &target.chain_request(),
            findings,
            verified.as_ref(),
        )
        .with_details(build_details(&reports, None)));
    }
    let chain = chosen
        .map_err(|error| CommandFailure::from(error).with_details(build_details(&reports, None)))?;
    match verified {
        Some(Ok(reached)) => Ok(build_success(&chain, reached, &reports)),
        Some(Err(error)) => {
            Err(CommandFailure::from(error).with_details(build_details(&reports, None)))
        }
        None => Err(CommandFailure::from_reason(
            Verdict::Failed,
            "not every object of the chain was read",
        )),
    }
}

/// Returns the failure if the store could not be read.
fn find_store_failure(findings: &[ObjectCheck]) -> Option<CommandFailure> {
    findings.iter().find_map(|finding| {
        let error = finding.contents.as_ref().err()?;
        let is_store = error.verdict() == Verdict::StoreUnavailable;
        is_store.then(|| {
            CommandFailure::new(Verdict::StoreUnavailable, error)
                .with_next_step("run the same command again when the store is reachable")
        })
    })
}

/// Follows the chain through the verified content of its objects; `None` if one of them is damaged.
fn follow_chain(
    chain: &SnapshotChain,
    findings: &[ObjectCheck],
    stop: StopPoint,
) -> Option<Result<ReachedState, ProofError>> {
    let proof = |object: &SnapshotObject| {
        findings
            .iter()
            .find(|finding| finding.object.key == object.key)?
            .contents
            .as_ref()
            .ok()
    };
    let facts: &DatabaseStatus = match proof(&chain.base)? {
        ObjectProof::Full { facts, .. } => facts,
        ObjectProof::Delta(_) => return None,
    };
    let span = |object: &SnapshotObject| match proof(object)? {
        ObjectProof::Delta(span) => Some(span.clone()),
        ObjectProof::Full { .. } => None,
    };
    let spans: Option<Vec<DeltaSpan>> =
        chain.deltas.iter().map(|link| span(&link.object)).collect();
    Some(check_chain(chain, facts, &spans?, stop))
}

fn build_success(
    chain: &SnapshotChain,
    reached: ReachedState,
    reports: &[ObjectReport],
) -> CommandOutcome {
    let bytes = reports.iter().map(|report| report.bytes).sum();
    let mut text = format!(
        "revision {} is restorable from {} and {} deltas; {} objects ({}) verified\n",
        reached.revision,
        chain.base.name,
        chain.deltas.len(),
        reports.len(),
        format_bytes(bytes)
    );
    // etcd-backup-restore names a full snapshot before it is taken, so it may contain later revisions.
    if reached.base_revision > chain.base.name.last {
        let _ = writeln!(
            text,
            "{} contains revision {}, newer than in its name",
            chain.base.name, reached.base_revision
        );
    }
    CommandOutcome::new(
        Verdict::Restorable,
        text,
        &build_details(reports, Some((chain, reached))),
    )
}

fn build_details(
    reports: &[ObjectReport],
    verified: Option<(&SnapshotChain, ReachedState)>,
) -> Value {
    let mut details = json!({ "objects": reports });
    if let (Some((chain, reached)), Some(object)) = (verified, details.as_object_mut()) {
        object.insert("revision".into(), reached.revision.0.into());
        object.insert("base".into(), chain.base.name.to_string().into());
        object.insert("baseRevision".into(), reached.base_revision.0.into());
        object.insert(
            "compactRevision".into(),
            reached.compact_revision.map(|r| r.0).into(),
        );
        object.insert("deltas".into(), chain.deltas.len().into());
    }
    details
}

/// Reports the damage and which revisions are restorable in spite of it.
fn build_damage_failure(
    catalogue: &Catalogue,
    request: &ChainRequest,
    findings: &[ObjectCheck],
    verified: Option<&Result<ReachedState, ProofError>>,
) -> CommandFailure {
    let faults: Vec<(&SnapshotObject, &ProofError)> = findings
        .iter()
        .filter_map(|finding| Some((&finding.object, finding.contents.as_ref().err()?)))
        .collect();
    let mut reason = String::new();
    for (at, (_, fault)) in faults.iter().enumerate() {
        let comma = if at == 0 { "" } else { "; " };
        let _ = write!(reason, "{comma}{}", mainstay_telemetry::ErrorChain(*fault));
    }
    let next = match verified {
        Some(Ok(reached)) => format!(
            "the damaged objects are not needed: revision {} is restorable",
            reached.revision
        ),
        _ => suggest_alternative(catalogue, request, &faults),
    };
    CommandFailure::from_reason(Verdict::DamagedBackup, reason).with_next_step(next)
}

fn suggest_alternative(
    catalogue: &Catalogue,
    request: &ChainRequest,
    faults: &[(&SnapshotObject, &ProofError)],
) -> String {
    let mut request = request.clone();
    request
        .excluded
        .extend(faults.iter().map(|(object, _)| object.key.clone()));
    let is_usable = |objects: &[SnapshotObject]| -> Vec<SnapshotObject> {
        objects
            .iter()
            .filter(|object| !request.excluded.contains(&object.key))
            .cloned()
            .collect()
    };
    if let Ok(chain) = choose(catalogue, &request) {
        return format!(
            "the target is restorable from {} and {} deltas without the damaged objects: \
             move the damaged objects out of the prefix and verify again",
            chain.base.name,
            chain.deltas.len()
        );
    }
    let rest = Catalogue {
        fulls: is_usable(&catalogue.fulls),
        deltas: is_usable(&catalogue.deltas),
        ..Catalogue::default()
    };
    let ranges = restorable_revisions(&rest);
    match ranges.0.last() {
        Some((_, newest)) => format!(
            "revisions restorable without the damaged objects, according to object names: {ranges}; \
             use --to-revision {newest} for the newest"
        ),
        None => "there is no other full snapshot: use another copy of the backup".into(),
    }
}

fn build_object_reports(
    chain: Option<&SnapshotChain>,
    findings: &[ObjectCheck],
) -> Vec<ObjectReport> {
    let chain = chain.map(list_chain_objects).unwrap_or_default();
    let report = |finding: &ObjectCheck| ObjectReport {
        name: finding.object.name.to_string(),
        key: finding.object.key.clone(),
        bytes: finding.object.size,
        is_in_chain: chain.iter().any(|object| object.key == finding.object.key),
        is_sound: finding.contents.is_ok(),
        fault: finding
            .contents
            .as_ref()
            .err()
            .map(|e| mainstay_telemetry::ErrorChain(e).to_string()),
        contents: finding
            .contents
            .as_ref()
            .ok()
            .map(ContentsReport::from_contents),
    };
    findings.iter().map(report).collect()
}

impl ContentsReport {
    fn from_contents(proof: &ObjectProof) -> Self {
        match proof {
            ObjectProof::Full { facts, layout } => Self::Full {
                revision: facts.revision.0,
                compact_revision: facts.compact_revision().map(|revision| revision.0),
                content_bytes: layout.database_bytes,
                is_hashed: layout.is_hashed,
            },
            ObjectProof::Delta(span) => Self::Delta {
                first_revision: span.revisions().map(|(first, _)| first.0),
                last_revision: span.revisions().map(|(_, last)| last.0),
                events: span.events,
                content_bytes: span.bytes,
                first_time: span.first_time.clone(),
                last_time: span.last_time.clone(),
            },
        }
    }
}
