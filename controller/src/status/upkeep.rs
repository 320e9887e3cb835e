//! What came of compactions and rehearsals, as it is told.

use mainstay_crds::etcd::{DrillStatus, MainstayStatus};
use mainstay_crds::{ConditionStatus, ConditionType, EtcdStatus};

use super::conditions::{ConditionUpdate, build_update};
use super::{Facts, clock};
use crate::decide::upkeep::{FULL_SNAPSHOT_FAILED, FULL_SNAPSHOT_TAKEN, ReportedUpkeep, ReportedOutcome, format_job_marker};
use crate::observe::{FallbackSnapshot, JobState, ObservedJob};

/// What was told before.
pub fn read_reported_upkeep(status: &EtcdStatus) -> ReportedUpkeep {
    let of = |type_: ConditionType| {
        let conditions = status.conditions.as_ref()?;
        let found = conditions
            .iter()
            .find(|condition| condition.type_ == type_)?;
        Some(ReportedOutcome {
            status: found.status.clone(),
            reason: found.reason.clone(),
            message: found.message.clone(),
            reported_at: found.last_update_time.0,
        })
    };
    ReportedUpkeep {
        compaction: of(ConditionType::LastSnapshotCompactionSucceeded),
        drill: of(ConditionType::LastRestoreDrillSucceeded),
        drill_count: count_drills(status.mainstay.as_ref()),
    }
}

/// How many rehearsals were told of.
fn count_drills(mainstay: Option<&MainstayStatus>) -> u32 {
    let drill = mainstay.and_then(|mainstay| mainstay.restore_drill.as_ref());
    let count = drill.map(|drill| drill.count.unwrap_or(1));
    count
        .and_then(|count| u32::try_from(count).ok())
        .unwrap_or_default()
}

/// The last compaction, when there is something new about it.
pub(super) fn check_compaction(facts: &Facts<'_>) -> Option<ConditionUpdate> {
    match &facts.observed.upkeep.fallback {
        FallbackSnapshot::Taken => {
            let message = format!(
                "a full snapshot was taken in place of a compaction {}",
                format_job_marker(facts.now)
            );
            return Some(build_update(ConditionStatus::True, FULL_SNAPSHOT_TAKEN, message));
        }
        FallbackSnapshot::Failed { reason: why } => {
            let message = format!(
                "neither compacted nor was a full snapshot taken: {why} {}",
                format_job_marker(facts.now)
            );
            return Some(build_update(ConditionStatus::False, FULL_SNAPSHOT_FAILED, message));
        }
        FallbackSnapshot::None | FallbackSnapshot::Running => {}
    }
    let job = facts.observed.upkeep.compaction.as_ref()?;
    build_job_update(job, "None", |done| match &done.snapshot {
        Some(snapshot) => format!("deltas were folded into {snapshot}"),
        None => "there was nothing to fold".to_owned(),
    })
}

/// The last rehearsal, when there is something new about it.
pub(super) fn check_drill(facts: &Facts<'_>) -> Option<ConditionUpdate> {
    let job = facts.observed.upkeep.drill.as_ref()?;
    build_job_update(job, "DrillSucceeded", |done| {
        let revision = done.revision.unwrap_or_default();
        let compared = describe_hash_comparison(done.hash_kv.as_deref());
        format!(
            "revision {revision} was restored: every hash and every revision is there, {compared}"
        )
    })
}

/// What a rehearsal tells of its comparison with etcd, in words.
fn describe_hash_comparison(hash_kv: Option<&str>) -> String {
    match hash_kv.map(|told| told.split_once(' ')) {
        Some(Some(("equal", hash))) => format!("and it is what etcd held (HashKV {hash})"),
        Some(_) => "and keeps less history than etcd, so it was not compared".to_owned(),
        None => "and no member told what etcd held".to_owned(),
    }
}

fn build_job_update(
    job: &ObservedJob,
    reason: &'static str,
    words: impl FnOnce(&mainstay_verdict::CommandDetails) -> String,
) -> Option<ConditionUpdate> {
    match &job.state {
        JobState::Running => None,
        JobState::Succeeded { at, done } => Some(build_update(
            ConditionStatus::True,
            reason,
            format!("{} {}", words(done), format_job_marker(*at)),
        )),
        JobState::Failed { at, failure } => Some(build_update(
            ConditionStatus::False,
            failure.class.reason(),
            format!("{} {}", failure.message, format_job_marker(*at)),
        )),
    }
}

/// The last rehearsal in numbers.
pub(super) fn set_drill_status(
    facts: &Facts<'_>,
    before: Option<MainstayStatus>,
) -> Option<MainstayStatus> {
    let job = facts.observed.upkeep.drill.as_ref();
    let Some((job, says)) = job.zip(check_drill(facts)) else {
        return before;
    };
    let ended = job.state.ended_at().unwrap_or(facts.now);
    let done = match &job.state {
        JobState::Succeeded { done, .. } => Some(done),
        JobState::Running | JobState::Failed { .. } => None,
    };
    let took = job
        .created_at
        .map(|created| ended.duration_since(created).as_secs());
    let finished_at = clock::to_whole_seconds(ended);
    let told = before
        .as_ref()
        .and_then(|mainstay| mainstay.restore_drill.as_ref());
    let is_new = told.is_none_or(|told| told.finished_at != finished_at);
    let count = count_drills(before.as_ref()).saturating_add(u32::from(is_new));
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
        let equal = describe_hash_comparison(Some("equal 7:0:000000ff"));
        assert_eq!(equal, "and it is what etcd held (HashKV 7:0:000000ff)");
        for other in [
            Some("compacted 7:0:000000ff"),
            Some("equal"),
            Some(""),
            None,
        ] {
            assert!(!describe_hash_comparison(other).contains("is what etcd held"), "{other:?}");
        }
    }
}
