//! Restores and recoveries that a person asks for. The task writes down what is to be done and waits: the Etcd's own
//! recovery does it, with its lock and its steps.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_coordination::incident::{self, Cause, Incident, Source, Stage};
use mainstay_coordination::{CoordinationError, Purpose};
use mainstay_crds::Etcd;
use mainstay_crds::ops::{OpsTaskResult, RecoverQuorum, TaskState};
use mainstay_manifests::Names;
use mainstay_manifests::jobs::Target;
use mainstay_telemetry::Chain;

use super::decide::{Telling, of_incident};
use super::execute::{Safety, Sight, failed, safety};
use super::{Outcome, Pass, wait};
use crate::act::ActError;
use crate::act::recovery::{acquire, coordinator};
use crate::decide::recovery::{on_request, token};
use crate::decide::{Known, World};
use crate::observe::{self, Dialer, Ordinal};
use crate::status::{describe_hold, plan_of};
use crate::tasks::TaskError;

/// How far a recovery of this task is.
enum Written {
    /// It is over.
    Over(Telling),
    /// It goes on, or another one does.
    Busy,
    /// Another one goes on that nobody asked for, and it has failed before: a person may want another state instead.
    Stuck(Incident),
    /// Nothing goes on; this is what was last.
    Nothing(Option<Incident>),
}

/// Puts the cluster back to a state of its backup.
pub(super) async fn restore(
    pass: &Pass<'_>,
    etcd: &Etcd,
    sight: &Sight,
    target: Target,
) -> Result<Outcome, TaskError> {
    let last = match written(pass, etcd).await? {
        Written::Over(telling) => return Ok(Outcome::Told(telling)),
        Written::Stuck(incident) => Some(incident),
        Written::Busy => return Ok(wait()),
        Written::Nothing(last) => last,
    };
    let status = pass.task.status.as_ref();
    if status.and_then(|status| status.mainstay.as_ref()).is_none() {
        return Ok(match safety(pass, etcd, sight).await {
            Ok(safety) => Outcome::Told(saved(safety)),
            Err(error) => failed(
                "ERR_CREATE_SNAPSHOT",
                format!(
                    "the present state could not be saved, so nothing was restored: {}",
                    Chain(&error)
                ),
            ),
        });
    }
    let base = Ordinal(0);
    let claim = sight.objects.observation.claims.get(&base);
    if !claim.is_some_and(|claim| claim.is_bound && !claim.is_lost && !claim.is_deleting) {
        return Ok(failed("ERR_RESTORE", "there is no volume to restore to"));
    }
    let set = sight.objects.observation.set.as_ref();
    let size = set.map_or(0, |set| set.replicas).max(sight.wanted.replicas);
    if size == 0 {
        return Ok(failed(
            "ERR_ETCD_ASLEEP",
            "the Etcd went to sleep meanwhile",
        ));
    }
    match incident(pass.id(), (base, size), target) {
        Ok(incident) => open(pass, etcd, last.as_ref(), &incident).await,
        Err(words) => Ok(failed("ERR_INVALID_TASK", words)),
    }
}

/// The restore of a state that a person wants.
fn incident(id: String, (base, size): (Ordinal, u32), target: Target) -> Result<Incident, String> {
    let now = Timestamp::now();
    Ok(Incident {
        token: token(&id, now),
        id,
        cause: Cause::Requested,
        stage: Stage::Restoring,
        base: base.0,
        size,
        source: Source::Backup,
        target: match target {
            Target::Newest => incident::Target::Newest,
            Target::Revision(revision) => incident::Target::Revision(revision),
            Target::Time(time) => match time.parse() {
                Ok(time) => incident::Target::Time(time),
                Err(_) => return Err(format!("{time:?} is no time")),
            },
            Target::Full { name, revision } => incident::Target::Full { name, revision },
        },
        attempt: 1,
        started: now,
        changed: now,
        revision: None,
        cluster: None,
        message: String::new(),
        other: BTreeMap::new(),
    })
}

fn saved(safety: Safety) -> Telling {
    let (words, taken) = match safety {
        Safety::Taken(name) => {
            let words = format!("the present state was saved as {name}; the restore begins");
            (words, Some(name))
        }
        Safety::Unchanged => (
            "nothing has changed since the last snapshot, so the present state is saved".to_owned(),
            None,
        ),
        Safety::Silent => (
            "the cluster does not serve, so there is no present state to save".to_owned(),
            None,
        ),
    };
    Telling::well(TaskState::InProgress, words.clone()).with(OpsTaskResult {
        summary: words,
        revision: None,
        snapshot: None,
        safety_snapshot: taken,
    })
}

/// Recovers a lost quorum, whatever the mode of the Etcd says.
pub(super) async fn quorum(
    pass: &Pass<'_>,
    etcd: &Etcd,
    sight: &Sight,
    how: &RecoverQuorum,
) -> Result<Outcome, TaskError> {
    let last = match written(pass, etcd).await? {
        Written::Over(telling) => return Ok(Outcome::Told(telling)),
        Written::Busy | Written::Stuck(_) => return Ok(wait()),
        Written::Nothing(last) => last,
    };
    let base = match &how.from_member {
        None => None,
        Some(name) => {
            let Some(ordinal) = Names::of(etcd).ordinal_of_member(name) else {
                let words = format!("{name:?} is no member of this Etcd");
                return Ok(failed("ERR_INVALID_TASK", words));
            };
            Some(Ordinal(ordinal))
        }
    };
    let mut seen = sight.objects.observation.clone();
    let dialer = Dialer::new(&pass.ctx.client, etcd);
    seen.membership = observe::members(&dialer, etcd, &seen).await;
    let known = Known::default();
    let world = World {
        wanted: &sight.wanted,
        seen: &seen,
        policy: &pass.ctx.policy,
        known: &known,
        now: Timestamp::now(),
    };
    let incident = match on_request(&world, &pass.id(), base) {
        Ok(incident) => incident,
        Err(Some(hold)) => {
            return Ok(failed(
                "ERR_RECOVER_QUORUM",
                describe_hold(&hold, &sight.wanted),
            ));
        }
        Err(None) => {
            let words = "that the data of a quorum is lost is not proven";
            return Ok(failed("ERR_QUORUM_PRESENT", words));
        }
    };
    if how.dry_run == Some(true) {
        let summary = plan_of(&incident, &sight.wanted);
        let result = OpsTaskResult {
            summary: summary.clone(),
            ..OpsTaskResult::default()
        };
        let telling = Telling::well(TaskState::Succeeded, summary).with(result);
        return Ok(Outcome::Told(telling));
    }
    open(pass, etcd, last.as_ref(), &incident).await
}

async fn written(pass: &Pass<'_>, etcd: &Etcd) -> Result<Written, TaskError> {
    let coordinator = coordinator(pass.ctx, etcd);
    let found = coordinator.incident().await;
    let found = found.map_err(|source| not_written("look for a recovery", source))?;
    let is_ours = |incident: &Incident| incident.id == pass.id();
    if !pass.has_begun() && found.as_ref().is_some_and(is_ours) {
        pass.note_begun().await?;
    }
    Ok(judge(found, &pass.id(), pass.has_begun()))
}

/// What a document says about the recovery of a task. What was begun once is not begun again, whatever became of it.
fn judge(found: Option<Incident>, id: &str, has_begun: bool) -> Written {
    match found {
        Some(incident) if incident.id == id => match of_incident(&incident) {
            Some(telling) => Written::Over(telling),
            None => Written::Busy,
        },
        _ if has_begun => {
            let words = "the recovery that this task began is not written down any more, so how it ended is not known; \
                         the Events and the status of the Etcd tell more";
            Written::Over(Telling::ill(TaskState::Failed, "ERR_RESTORE", words))
        }
        Some(incident) if is_stuck(&incident) => Written::Stuck(incident),
        Some(incident) if incident.is_open() => Written::Busy,
        last => Written::Nothing(last),
    }
}

/// Whether a recovery writes a volume and could not do it: the backup does not hold what it wants.
fn is_stuck(incident: &Incident) -> bool {
    incident.stage == Stage::Restoring && incident.attempt > 1 && incident.cause != Cause::Requested
}

async fn open(
    pass: &Pass<'_>,
    etcd: &Etcd,
    last: Option<&Incident>,
    incident: &Incident,
) -> Result<Outcome, TaskError> {
    pass.may()?;
    let coordinator = coordinator(pass.ctx, etcd);
    let purpose = match incident.cause {
        Cause::QuorumLost => Purpose::RecoverQuorum,
        _ => Purpose::Restore,
    };
    let Some(held) = acquire(&coordinator, purpose).await? else {
        return Ok(wait());
    };
    match held.fence().record(last, incident).await {
        Ok(found) if found.as_ref() == Some(incident) => pass.note_begun().await?,
        Ok(_) | Err(CoordinationError::Lost { .. }) => {}
        Err(source) => return Err(not_written("write down what is asked for", source)),
    }
    let key = crate::context::Key {
        namespace: pass.namespace.clone(),
        name: etcd.metadata.name.clone().unwrap_or_default(),
    };
    pass.ctx.poke.etcd(&key);
    Ok(wait())
}

fn not_written(step: &'static str, source: CoordinationError) -> TaskError {
    ActError::Coordinate { step, source }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::recovery::an_incident;

    fn written(id: &str, stage: Stage) -> Incident {
        Incident {
            id: id.to_owned(),
            stage,
            ..an_incident()
        }
    }

    #[test]
    fn a_task_begins_one_recovery_and_not_another() {
        let id = "task-1";
        assert!(matches!(judge(None, id, false), Written::Nothing(None)));
        let others = || Some(written("5f3a", Stage::Closed));
        assert!(matches!(
            judge(others(), id, false),
            Written::Nothing(Some(_))
        ));
        for found in [None, others(), Some(written("5f3a", Stage::Restoring))] {
            let Written::Over(telling) = judge(found.clone(), id, true) else {
                panic!("it would begin again: {found:?}")
            };
            assert_eq!(telling.state, TaskState::Failed);
        }
        let own = |stage| judge(Some(written(id, stage)), id, true);
        assert!(matches!(own(Stage::Restored), Written::Busy));
        assert!(
            matches!(own(Stage::Closed), Written::Over(telling) if telling.state == TaskState::Succeeded)
        );
        let busy = judge(Some(written("5f3a", Stage::Restoring)), id, false);
        assert!(matches!(busy, Written::Busy));
    }

    #[test]
    fn a_recovery_that_fails_again_and_again_gives_way_to_what_a_person_asks_for() {
        let failing = |stage, cause| Incident {
            attempt: 2,
            cause,
            ..written("5f3a", stage)
        };
        let judged = |incident| judge(Some(incident), "task-1", false);
        for cause in [Cause::MemberLost, Cause::QuorumLost, Cause::FormerBackup] {
            let stuck = judged(failing(Stage::Restoring, cause));
            assert!(matches!(stuck, Written::Stuck(_)), "{cause:?}");
            let restored = judged(failing(Stage::Restored, cause));
            assert!(matches!(restored, Written::Busy), "its data is there");
        }
        let asked_for = judged(failing(Stage::Restoring, Cause::Requested));
        assert!(matches!(asked_for, Written::Busy), "somebody else's");
    }

    #[test]
    fn a_cluster_that_serves_is_not_said_to_be_silent() {
        let words = |safety| saved(safety).words;
        assert!(words(Safety::Silent).contains("does not serve"));
        assert!(words(Safety::Unchanged).contains("nothing has changed"));
        let taken = saved(Safety::Taken("Full-1".to_owned())).result.unwrap();
        assert_eq!(taken.safety_snapshot.as_deref(), Some("Full-1"));
    }
}
