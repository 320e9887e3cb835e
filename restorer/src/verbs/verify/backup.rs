//! The backup half of `verify`: read objects in parallel, then judge the chain.

use std::fmt::Write as _;
use std::sync::Arc;

use mainstay_archive::catalogue::{Catalogue, Object};
use mainstay_archive::chain::{Chain, ChooseError, Request, choose, restorable};
use mainstay_mvcc::Facts;
use mainstay_store::StoreConfig;
use mainstay_telemetry::{Progress, human_bytes};
use serde::Serialize;
use serde_json::{Value, json};

use super::pool::{Finding, Proof, examine_all};
use crate::backup::Backup;
use crate::cli::Context;
use crate::directory::sample;
use crate::examine::{How, Reached, Span, judge};
use crate::failure::{Classify, Failure, Verdict};
use crate::outcome::Outcome;
use crate::rebuild::{HashCheck, Meter, RebuildError, Stop};
use crate::target::TargetArgs;
use crate::threads;

/// Which objects are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those a restore would use.
    Chain,
    /// Every one of the prefix.
    Prefix,
}

/// What to verify.
#[derive(Clone, Debug)]
pub struct VerifyRequest {
    /// The backup.
    pub store: StoreConfig,
    /// Which state of it.
    pub target: TargetArgs,
    /// Which objects.
    pub scope: Scope,
    /// What to do about a full snapshot without a hash.
    pub hash_check: HashCheck,
}

/// One object, as reported.
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
    proof: Option<ProofReport>,
}

/// What an object proved to hold.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", untagged)]
enum ProofReport {
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
/// A [`Failure`] whose verdict says whether the backup is damaged, incomplete, or cannot be read.
pub async fn verify(request: VerifyRequest, context: &Context) -> Result<Outcome, Failure> {
    let VerifyRequest {
        store,
        target,
        scope,
        hash_check,
    } = request;
    let backup = Backup::open(&store, &context.environment).await?;
    let chosen = choose(&backup.catalogue, &target.request());
    let objects = match (&chosen, scope) {
        (Err(ChooseError::Empty), _) | (Err(_), Scope::Chain) => return Err(refused(chosen)),
        (_, Scope::Prefix) => backup
            .catalogue
            .fulls
            .iter()
            .chain(&backup.catalogue.deltas)
            .cloned()
            .collect(),
        (Ok(chain), Scope::Chain) => chain_objects(chain),
    };
    let how = How {
        hash_check,
        stop: target.stop(),
        threads: threads(),
    };
    let meter = Arc::new(Meter::default());
    meter.expect(objects.iter().map(|object: &Object| object.size).sum());
    let sources = backup.sources(&meter);
    let progress = Progress::start("verify", move || sample(&meter));
    let work = tokio::task::spawn_blocking(move || examine_all(&objects, &sources, &how));
    let findings = work
        .await
        .map_err(|error| Failure::new(Verdict::Failed, &error))?;
    drop(progress);
    conclude(&backup.catalogue, &target, chosen, &findings)
}

fn refused(chosen: Result<Chain, ChooseError>) -> Failure {
    match chosen {
        Ok(_) => Failure::because(Verdict::Failed, "nothing to verify"),
        Err(error) => error.into(),
    }
}

fn chain_objects(chain: &Chain) -> Vec<Object> {
    let deltas = chain.deltas.iter().map(|link| link.object.clone());
    std::iter::once(chain.base.clone()).chain(deltas).collect()
}

/// From what was found to what to say.
fn conclude(
    catalogue: &Catalogue,
    target: &TargetArgs,
    chosen: Result<Chain, ChooseError>,
    findings: &[Finding],
) -> Result<Outcome, Failure> {
    if let Some(failure) = unavailable(findings) {
        return Err(failure);
    }
    let reports = reports(chosen.as_ref().ok(), findings);
    let is_damaged = findings.iter().any(|finding| finding.proof.is_err());
    let verified = match &chosen {
        Ok(chain) => reached(chain, findings, target.stop()),
        Err(_) => None,
    };
    if is_damaged {
        return Err(
            damaged(catalogue, &target.request(), findings, verified.as_ref())
                .with_details(details(&reports, None)),
        );
    }
    let chain =
        chosen.map_err(|error| Failure::from(error).with_details(details(&reports, None)))?;
    match verified {
        Some(Ok(reached)) => Ok(sound(&chain, reached, &reports)),
        Some(Err(error)) => Err(Failure::from(error).with_details(details(&reports, None))),
        None => Err(Failure::because(
            Verdict::Failed,
            "an object of the chain was not read",
        )),
    }
}

/// The store could not be read: that says nothing about the backup.
fn unavailable(findings: &[Finding]) -> Option<Failure> {
    findings.iter().find_map(|finding| {
        let error = finding.proof.as_ref().err()?;
        let is_store = error.verdict() == Verdict::StoreUnavailable;
        is_store.then(|| {
            Failure::new(Verdict::StoreUnavailable, error)
                .with_next_step("run the same command again when the store can be reached")
        })
    })
}

/// Follows the chain over what its objects hold; `None` where one of them is damaged.
fn reached(
    chain: &Chain,
    findings: &[Finding],
    stop: Stop,
) -> Option<Result<Reached, RebuildError>> {
    let proof = |object: &Object| {
        findings
            .iter()
            .find(|finding| finding.object.key == object.key)?
            .proof
            .as_ref()
            .ok()
    };
    let facts: &Facts = match proof(&chain.base)? {
        Proof::Full { facts, .. } => facts,
        Proof::Delta(_) => return None,
    };
    let span = |object: &Object| match proof(object)? {
        Proof::Delta(span) => Some(span.clone()),
        Proof::Full { .. } => None,
    };
    let spans: Option<Vec<Span>> = chain.deltas.iter().map(|link| span(&link.object)).collect();
    Some(judge(chain, facts, &spans?, stop))
}

fn sound(chain: &Chain, reached: Reached, reports: &[ObjectReport]) -> Outcome {
    let bytes = reports.iter().map(|report| report.bytes).sum();
    let mut text = format!(
        "revision {} is restorable from {} and {} deltas; {} objects ({}) are sound\n",
        reached.revision,
        chain.base.name,
        chain.deltas.len(),
        reports.len(),
        human_bytes(bytes)
    );
    if reached.base_revision > chain.base.name.last {
        let _ = writeln!(
            text,
            "{} holds revision {}, newer than its name says",
            chain.base.name, reached.base_revision
        );
    }
    Outcome::new(
        Verdict::Restorable,
        text,
        &details(reports, Some((chain, reached))),
    )
}

fn details(reports: &[ObjectReport], verified: Option<(&Chain, Reached)>) -> Value {
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

/// Names the damage, and what can be had in spite of it.
fn damaged(
    catalogue: &Catalogue,
    request: &Request,
    findings: &[Finding],
    verified: Option<&Result<Reached, RebuildError>>,
) -> Failure {
    let faults: Vec<(&Object, &RebuildError)> = findings
        .iter()
        .filter_map(|finding| Some((&finding.object, finding.proof.as_ref().err()?)))
        .collect();
    let mut reason = String::new();
    for (at, (_, fault)) in faults.iter().enumerate() {
        let comma = if at == 0 { "" } else { "; " };
        let _ = write!(reason, "{comma}{}", mainstay_telemetry::Chain(*fault));
    }
    let next = match verified {
        Some(Ok(reached)) => format!(
            "the damage is outside the chain of the target: revision {} is restorable",
            reached.revision
        ),
        _ => instead(catalogue, request, &faults),
    };
    Failure::because(Verdict::DamagedBackup, reason).with_next_step(next)
}

fn instead(
    catalogue: &Catalogue,
    request: &Request,
    faults: &[(&Object, &RebuildError)],
) -> String {
    let mut request = request.clone();
    request
        .without
        .extend(faults.iter().map(|(object, _)| object.key.clone()));
    let usable = |objects: &[Object]| -> Vec<Object> {
        objects
            .iter()
            .filter(|object| !request.without.contains(&object.key))
            .cloned()
            .collect()
    };
    if let Ok(chain) = choose(catalogue, &request) {
        return format!(
            "without the damaged objects the target can be reached from {} and {} deltas: \
             move the damaged objects out of the prefix and verify again",
            chain.base.name,
            chain.deltas.len()
        );
    }
    let rest = Catalogue {
        fulls: usable(&catalogue.fulls),
        deltas: usable(&catalogue.deltas),
        ..Catalogue::default()
    };
    let ranges = restorable(&rest);
    match ranges.0.last() {
        Some((_, newest)) => format!(
            "restorable without the damaged objects, by their names: {ranges}; \
             --to-revision {newest} takes the newest"
        ),
        None => "no other full snapshot is there: find another copy of the backup".into(),
    }
}

fn reports(chain: Option<&Chain>, findings: &[Finding]) -> Vec<ObjectReport> {
    let chain = chain.map(chain_objects).unwrap_or_default();
    let report = |finding: &Finding| ObjectReport {
        name: finding.object.name.to_string(),
        key: finding.object.key.clone(),
        bytes: finding.object.size,
        is_in_chain: chain.iter().any(|object| object.key == finding.object.key),
        is_sound: finding.proof.is_ok(),
        fault: finding
            .proof
            .as_ref()
            .err()
            .map(|e| mainstay_telemetry::Chain(e).to_string()),
        proof: finding.proof.as_ref().ok().map(ProofReport::of),
    };
    findings.iter().map(report).collect()
}

impl ProofReport {
    fn of(proof: &Proof) -> Self {
        match proof {
            Proof::Full {
                facts,
                bytes,
                is_hashed,
            } => Self::Full {
                revision: facts.revision.0,
                compact_revision: facts.compact_revision().map(|revision| revision.0),
                content_bytes: *bytes,
                is_hashed: *is_hashed,
            },
            Proof::Delta(span) => Self::Delta {
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
