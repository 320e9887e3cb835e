//! What came of compactions and rehearsals, as it is told.

use mainstay_crds::etcd::{DrillStatus, MainstayStatus};
use mainstay_crds::{ConditionStatus, ConditionType, EtcdStatus};

use super::conditions::{Says, says};
use super::{Facts, clock};
use crate::decide::upkeep::{FULL_FAILED, FULL_TAKEN, KnownUpkeep, Told, mark};
use crate::observe::{FallBack, JobState, SeenJob};

/// What was told before.
pub fn told(status: &EtcdStatus) -> KnownUpkeep {
    let of = |type_: ConditionType| {
        let conditions = status.conditions.as_ref()?;
        let found = conditions
            .iter()
            .find(|condition| condition.type_ == type_)?;
        Some(Told {
            status: found.status.clone(),
            reason: found.reason.clone(),
            message: found.message.clone(),
            at: found.last_update_time.0,
        })
    };
    KnownUpkeep {
        compaction: of(ConditionType::LastSnapshotCompactionSucceeded),
        drill: of(ConditionType::LastRestoreDrillSucceeded),
        drills: drills(status.mainstay.as_ref()),
    }
}

/// How many rehearsals were told of.
fn drills(mainstay: Option<&MainstayStatus>) -> u32 {
    let drill = mainstay.and_then(|mainstay| mainstay.restore_drill.as_ref());
    let count = drill.map(|drill| drill.count.unwrap_or(1));
    count
        .and_then(|count| u32::try_from(count).ok())
        .unwrap_or_default()
}

/// The last compaction, when there is something new about it.
pub(super) fn compaction(facts: &Facts<'_>) -> Option<Says> {
    match &facts.seen.upkeep.fall_back {
        FallBack::Taken => {
            let message = format!(
                "a full snapshot was taken in place of a compaction {}",
                mark(facts.now)
            );
            return Some(says(ConditionStatus::True, FULL_TAKEN, message));
        }
        FallBack::Failed { why } => {
            let message = format!(
                "neither compacted nor was a full snapshot taken: {why} {}",
                mark(facts.now)
            );
            return Some(says(ConditionStatus::False, FULL_FAILED, message));
        }
        FallBack::None | FallBack::Running => {}
    }
    let job = facts.seen.upkeep.compaction.as_ref()?;
    ended(job, "None", |done| match &done.snapshot {
        Some(snapshot) => format!("deltas were folded into {snapshot}"),
        None => "there was nothing to fold".to_owned(),
    })
}

/// The last rehearsal, when there is something new about it.
pub(super) fn drill(facts: &Facts<'_>) -> Option<Says> {
    let job = facts.seen.upkeep.drill.as_ref()?;
    ended(job, "DrillSucceeded", |done| {
        let revision = done.revision.unwrap_or_default();
        let compared = compared(done.hash_kv.as_deref());
        format!(
            "revision {revision} was restored: every hash and every revision is there, {compared}"
        )
    })
}

/// What a rehearsal tells of its comparison with etcd, in words.
fn compared(hash_kv: Option<&str>) -> String {
    match hash_kv.map(|told| told.split_once(' ')) {
        Some(Some(("equal", hash))) => format!("and it is what etcd held (HashKV {hash})"),
        Some(_) => "and keeps less history than etcd, so it was not compared".to_owned(),
        None => "and no member told what etcd held".to_owned(),
    }
}

fn ended(
    job: &SeenJob,
    reason: &'static str,
    words: impl FnOnce(&mainstay_verdict::Done) -> String,
) -> Option<Says> {
    match &job.state {
        JobState::Running => None,
        JobState::Succeeded { at, done } => Some(says(
            ConditionStatus::True,
            reason,
            format!("{} {}", words(done), mark(*at)),
        )),
        JobState::Failed { at, failure } => Some(says(
            ConditionStatus::False,
            failure.class.reason(),
            format!("{} {}", failure.words, mark(*at)),
        )),
    }
}

/// The last rehearsal in numbers.
pub(super) fn mainstay(
    facts: &Facts<'_>,
    before: Option<MainstayStatus>,
) -> Option<MainstayStatus> {
    let job = facts.seen.upkeep.drill.as_ref();
    let Some((job, says)) = job.zip(drill(facts)) else {
        return before;
    };
    let ended = job.state.ended().unwrap_or(facts.now);
    let done = match &job.state {
        JobState::Succeeded { done, .. } => Some(done),
        JobState::Running | JobState::Failed { .. } => None,
    };
    let took = job
        .created
        .map(|created| ended.duration_since(created).as_secs());
    let finished_at = clock::time(ended);
    let told = before
        .as_ref()
        .and_then(|mainstay| mainstay.restore_drill.as_ref());
    let is_new = told.is_none_or(|told| told.finished_at != finished_at);
    let count = drills(before.as_ref()).saturating_add(u32::from(is_new));
    Some(MainstayStatus {
        restore_drill: Some(DrillStatus {
            finished_at,
            count: Some(i64::from(count)),
            succeeded: says.status == ConditionStatus::True,
            revision: done.and_then(|done| done.revision),
            seconds: took,
            message: says.message,
        }),
        ..before.unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_equal_hash_is_called_so() {
        let equal = compared(Some("equal 7:0:000000ff"));
        assert_eq!(equal, "and it is what etcd held (HashKV 7:0:000000ff)");
        for other in [
            Some("compacted 7:0:000000ff"),
            Some("equal"),
            Some(""),
            None,
        ] {
            assert!(!compared(other).contains("is what etcd held"), "{other:?}");
        }
    }
}
