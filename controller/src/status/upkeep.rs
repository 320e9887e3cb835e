//! Results of compactions and restore drills: conditions and `status.mainstay.restoreDrill`.

use mainstay_crds::etcd::{DrillStatus, MainstayStatus};
use mainstay_crds::{ConditionStatus, ConditionType, EtcdStatus};

use super::conditions::{ConditionUpdate, build_update};
use super::{Facts, timestamps};
use crate::model::{
    FULL_SNAPSHOT_FAILED, FULL_SNAPSHOT_TAKEN, FallbackSnapshot, JobState, ObservedJob,
    ReportedOutcome, ReportedUpkeep, format_job_marker,
};

/// The results that the previous status reports.
pub(crate) fn read_reported_upkeep(status: &EtcdStatus) -> ReportedUpkeep {
    let reported_outcome = |type_: ConditionType| {
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
        compaction: reported_outcome(ConditionType::LastSnapshotCompactionSucceeded),
        drill: reported_outcome(ConditionType::LastRestoreDrillSucceeded),
        drill_count: count_drills(status.mainstay.as_ref()),
    }
}

/// The number of drills reported so far. A drill without a count is the first.
fn count_drills(mainstay: Option<&MainstayStatus>) -> u32 {
    let drill = mainstay.and_then(|mainstay| mainstay.restore_drill.as_ref());
    let count = drill.map(|drill| drill.count.unwrap_or(1));
    count
        .and_then(|count| u32::try_from(count).ok())
        .unwrap_or_default()
}

/// The result of the last compaction. `None` keeps the condition as it is.
pub(super) fn check_compaction(facts: &Facts<'_>) -> Option<ConditionUpdate> {
    match &facts.observed.upkeep.fallback {
        FallbackSnapshot::Taken => {
            // The marker identifies this result, so that it is reported once.
            let message = format!(
                "Full snapshot taken instead of a compaction {}",
                format_job_marker(facts.now)
            );
            return Some(build_update(
                ConditionStatus::True,
                FULL_SNAPSHOT_TAKEN,
                message,
            ));
        }
        // False with this reason makes the next reconcile retry the snapshot instead of a Job.
        FallbackSnapshot::Failed { reason: cause } => {
            let message = format!(
                "Full snapshot instead of a compaction failed: {cause} {}",
                format_job_marker(facts.now)
            );
            return Some(build_update(
                ConditionStatus::False,
                FULL_SNAPSHOT_FAILED,
                message,
            ));
        }
        FallbackSnapshot::None | FallbackSnapshot::Running => {}
    }
    let job = facts.observed.upkeep.compaction.as_ref()?;
    build_job_update(job, "None", |done| match &done.snapshot {
        Some(snapshot) => format!("Deltas compacted into {snapshot}"),
        None => "Nothing to compact".to_owned(),
    })
}

/// The result of the last restore drill. `None` keeps the condition as it is.
pub(super) fn check_drill(facts: &Facts<'_>) -> Option<ConditionUpdate> {
    let job = facts.observed.upkeep.drill.as_ref()?;
    build_job_update(job, "DrillSucceeded", |done| {
        let revision = done.revision.unwrap_or_default();
        let compared = describe_hash_comparison(done.hash_kv.as_deref());
        format!("Revision {revision} restored: all hashes and revisions verified, {compared}")
    })
}

/// Describes `hash_kv` of the drill: `equal <hash>`, another word when the histories differ, `None` without a hash of etcd.
fn describe_hash_comparison(hash_kv: Option<&str>) -> String {
    match hash_kv.map(|reported| reported.split_once(' ')) {
        Some(Some(("equal", hash))) => format!("content equals etcd's (HashKV {hash})"),
        Some(_) => "not compared with etcd: the restored data keeps less history".to_owned(),
        None => "not compared with etcd: no member reported its HashKV".to_owned(),
    }
}

fn build_job_update(
    job: &ObservedJob,
    reason: &'static str,
    describe: impl FnOnce(&mainstay_verdict::CommandDetails) -> String,
) -> Option<ConditionUpdate> {
    match &job.state {
        // Keeps the result of the previous Job until this one ends.
        JobState::Running => None,
        JobState::Succeeded { at, done } => Some(build_update(
            ConditionStatus::True,
            reason,
            format!("{} {}", describe(done), format_job_marker(*at)),
        )),
        JobState::Failed { at, failure } => Some(build_update(
            ConditionStatus::False,
            failure.class.reason(),
            format!("{} {}", failure.message, format_job_marker(*at)),
        )),
    }
}

pub(super) fn set_drill_status(
    facts: &Facts<'_>,
    before: Option<MainstayStatus>,
) -> Option<MainstayStatus> {
    let job = facts.observed.upkeep.drill.as_ref();
    let Some((job, update)) = job.zip(check_drill(facts)) else {
        return before;
    };
    let ended = job.state.ended_at().unwrap_or(facts.now);
    let done = match &job.state {
        JobState::Succeeded { done, .. } => Some(done),
        JobState::Running | JobState::Failed { .. } => None,
    };
    let elapsed = job
        .created_at
        .map(|created| ended.duration_since(created).as_secs());
    let finished_at = timestamps::to_whole_seconds(ended);
    let reported = before
        .as_ref()
        .and_then(|mainstay| mainstay.restore_drill.as_ref());
    // The same Job is read by several reconciles and counts once.
    let is_new = reported.is_none_or(|reported| reported.finished_at != finished_at);
    let count = count_drills(before.as_ref()).saturating_add(u32::from(is_new));
    Some(MainstayStatus {
        restore_drill: Some(DrillStatus {
            finished_at,
            count: Some(i64::from(count)),
            succeeded: update.status == ConditionStatus::True,
            revision: done.and_then(|done| done.revision),
            seconds: elapsed,
            message: update.message,
        }),
        ..before.unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_equal_hash_is_reported_as_equal() {
        let equal = describe_hash_comparison(Some("equal 7:0:000000ff"));
        assert_eq!(equal, "content equals etcd's (HashKV 7:0:000000ff)");
        for other in [
            Some("compacted 7:0:000000ff"),
            Some("equal"),
            Some(""),
            None,
        ] {
            assert!(
                !describe_hash_comparison(other).contains("equals etcd's"),
                "{other:?}"
            );
        }
    }
}
