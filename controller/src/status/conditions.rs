//! The conditions, each a function of what is seen.

use std::collections::BTreeSet;

use mainstay_crds::etcd::{EtcdMemberStatus, MemberState};
use mainstay_crds::{Condition, ConditionStatus, ConditionType};
use mainstay_ids::ClusterId;

use super::{Facts, backup, clock, recovery, upkeep};
use crate::decide::{SpecRefusal, quorum};
use crate::observe::{ObservedMembership, Ordinal, ObservedMemberLease};

/// The reason of a condition that keeps its status because nobody looks: the cluster sleeps.
pub(crate) const NOT_CHECKED: &str = "NotChecked";

/// What a condition says now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConditionUpdate {
    pub(super) status: ConditionStatus,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

pub(super) fn build_update(
    status: ConditionStatus,
    reason: &'static str,
    message: impl Into<String>,
) -> ConditionUpdate {
    ConditionUpdate {
        status,
        reason,
        message: message.into(),
    }
}

/// All of them, by name; those of other parts as they were.
pub(super) fn compute_conditions(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> Vec<Condition> {
    use ConditionType as Type;
    let mut computed = vec![
        (Type::Ready, Some(check_ready(facts, members))),
        (Type::AllMembersReady, Some(check_all_ready(facts, members))),
        (Type::AllMembersUpdated, Some(check_all_updated(facts))),
        (Type::BackupReady, backup::check_backup_ready(facts)),
        (Type::DataVolumesReady, Some(check_data_volumes(facts))),
        (Type::ClusterIDMismatch, Some(check_cluster_ids(facts))),
        (
            Type::BootstrappedWithExistingCluster,
            check_bootstrapped(facts, members),
        ),
        (Type::RecoveryRequired, recovery::check_recovery_required(facts)),
    ];
    // Those of the upkeep stay as they are until there is something new to tell.
    let upkeep = [
        (
            Type::LastSnapshotCompactionSucceeded,
            upkeep::check_compaction(facts),
        ),
        (Type::LastRestoreDrillSucceeded, upkeep::check_drill(facts)),
    ];
    computed.extend(upkeep.into_iter().filter(|(_, says)| says.is_some()));
    let is_ours = |type_: &Type| computed.iter().any(|(ours, _)| ours == type_);
    let before = facts.previous_status().and_then(|status| status.conditions.as_ref());
    let others = before
        .into_iter()
        .flatten()
        .filter(|condition| !is_ours(&condition.type_));
    let mut conditions: Vec<Condition> = others.cloned().collect();
    for (type_, says) in computed {
        let is_of_upkeep = matches!(
            type_,
            Type::LastSnapshotCompactionSucceeded | Type::LastRestoreDrillSucceeded
        );
        let says = if facts.desired.replicas == 0 && !is_of_upkeep {
            says.map(|_| keep_status_unchecked(facts, &type_))
        } else {
            says
        };
        conditions.extend(says.map(|says| stamp_condition(facts, type_, says)));
    }
    conditions.sort_by(|a, b| a.type_.as_str().cmp(b.type_.as_str()));
    conditions
}

/// Of a cluster that sleeps, what was true stays.
fn keep_status_unchecked(facts: &Facts<'_>, type_: &ConditionType) -> ConditionUpdate {
    let before = facts
        .previous_condition(type_)
        .map(|condition| condition.status.clone());
    let message = "the cluster is scaled down to no members";
    build_update(
        before.unwrap_or(ConditionStatus::Unknown),
        NOT_CHECKED,
        message,
    )
}

fn stamp_condition(facts: &Facts<'_>, type_: ConditionType, says: ConditionUpdate) -> Condition {
    let before = facts.previous_condition(&type_);
    let now = clock::to_whole_seconds(facts.now);
    let same_status = before.filter(|before| before.status == says.status);
    let same =
        same_status.filter(|before| before.reason == says.reason && before.message == says.message);
    Condition {
        last_transition_time: same_status
            .map_or_else(|| now.clone(), |before| before.last_transition_time.clone()),
        last_update_time: same.map_or(now, |before| before.last_update_time.clone()),
        type_,
        status: says.status,
        reason: says.reason.to_owned(),
        message: says.message,
    }
}

/// How many members a quorum is counted over: those the spec asks for, and those who vote beyond that while the cluster
/// shrinks. Members that come for the first time are not missed before they vote.
fn count_expected_voters(facts: &Facts<'_>) -> usize {
    let world = facts.world();
    let is_newcomer = |ordinal: Ordinal| {
        let held = facts
            .observed
            .leases
            .get(&ordinal)
            .is_some_and(|l| l.holder.is_some());
        world
            .member(ordinal)
            .map_or(!held, |member| member.is_learner)
    };
    let expected = (0..facts.desired.replicas).filter(|n| !is_newcomer(Ordinal(*n)));
    expected.count().max(world.voters().count())
}

/// Whether the cluster can decide: over those there should be, by what etcd says where it was asked.
fn check_ready(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> ConditionUpdate {
    let world = facts.world();
    if world.has_quorum() {
        let well = world.voters().filter(|v| v.is_healthy()).count();
        let of = count_expected_voters(facts);
        let message = format!("{well} of {of} members vote and are healthy");
        return if well >= quorum(of) {
            build_update(ConditionStatus::True, "Quorate", message)
        } else {
            build_update(ConditionStatus::False, "QuorumLost", message)
        };
    }
    if members.is_empty() {
        return build_update(
            ConditionStatus::Unknown,
            "NoMembersInStatus",
            "no member has registered yet",
        );
    }
    let of = facts.desired.replicas.max(world.size()) as usize;
    let count = |state: MemberState| {
        members
            .iter()
            .filter(|member| member.status == state)
            .count()
    };
    let (ready, unknown) = (count(MemberState::Ready), count(MemberState::Unknown));
    let message = format!("{ready} of {of} members are ready");
    if ready >= quorum(of) {
        build_update(ConditionStatus::True, "Quorate", message)
    } else if ready + unknown >= quorum(of) {
        build_update(
            ConditionStatus::Unknown,
            "MembersUnknown",
            format!("{message}, {unknown} give no sign of life"),
        )
    } else {
        build_update(ConditionStatus::False, "QuorumLost", message)
    }
}

fn check_all_ready(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> ConditionUpdate {
    if members.is_empty() {
        return build_update(
            ConditionStatus::Unknown,
            "NoMembersInStatus",
            "no member has registered yet",
        );
    }
    let wanted = facts.desired.replicas as usize;
    let unready = members
        .iter()
        .find(|member| member.status != MemberState::Ready);
    match unready {
        Some(member) => build_update(
            ConditionStatus::False,
            "NotAllMembersReady",
            format!("{} is {}: {}", member.name, member.status, member.reason),
        ),
        None if members.len() < wanted => build_update(
            ConditionStatus::False,
            "NotAllMembersReady",
            format!("{} of {wanted} members have registered", members.len()),
        ),
        None => build_update(
            ConditionStatus::True,
            "AllMembersReady",
            "all members are ready",
        ),
    }
}

/// Whether every member runs what the spec asks for: all of it, not only what was applied so far.
fn check_all_updated(facts: &Facts<'_>) -> ConditionUpdate {
    let not = |message: String| build_update(ConditionStatus::False, "NotAllMembersUpdated", message);
    let Some(set) = &facts.observed.stateful_set else {
        return build_update(
            ConditionStatus::Unknown,
            "StatefulSetNotFound",
            "there is no StatefulSet yet",
        );
    };
    if !set.is_observed {
        return not(
            "the StatefulSet has changed and its controller has not seen it yet".to_owned(),
        );
    }
    if set.replicas != facts.desired.replicas {
        return not(format!(
            "{} of {} members are there",
            set.replicas, facts.desired.replicas
        ));
    }
    let is_outdated = |ordinal: &Ordinal| {
        let pod = facts.observed.pods.get(ordinal);
        pod.is_none_or(|pod| pod.is_deleting || pod.revision != set.update_revision)
    };
    let outdated = (0..set.replicas).map(Ordinal).filter(is_outdated).count();
    if outdated > 0 {
        return not(format!(
            "{outdated} of {} members are not up to date",
            set.replicas
        ));
    }
    if let Some(refusal) = facts
        .plan
        .refusals
        .iter()
        .find(|refusal| is_update_pending(facts, refusal))
    {
        return not(super::describe_refusal(refusal));
    }
    let shape = facts.plan.effective_spec.as_ref();
    if shape.is_some_and(|shape| {
        shape.held_fields != crate::decide::HeldFields::default() || shape.peer_tls_stage != set.peer_tls_stage
    }) {
        return not("a part of the spec is still to come".to_owned());
    }
    build_update(
        ConditionStatus::True,
        "AllMembersUpdated",
        "all members are up to date",
    )
}

/// Whether a refusal means that the spec asks for more than there is. Being suspended alone does not.
fn is_update_pending(facts: &Facts<'_>, refusal: &SpecRefusal) -> bool {
    let is_observed = facts.last_known.observed_generation == Some(facts.desired.generation);
    !(is_observed && matches!(refusal, SpecRefusal::Suspended))
}

fn check_data_volumes(facts: &Facts<'_>) -> ConditionUpdate {
    let world = facts.world();
    let problem = world.ordinals().find_map(|ordinal| {
        let name = facts.desired.pod_name(ordinal);
        let Some(claim) = facts.observed.pvcs.get(&ordinal) else {
            return Some(format!("the volume claim of {name} does not exist"));
        };
        if claim.is_lost {
            return Some(format!("the volume of {name} is gone"));
        }
        if let Some(complaint) = &claim.resize_error {
            return Some(format!("the volume of {name}: {complaint}"));
        }
        if !claim.is_bound {
            return Some(format!("the volume claim of {name} is not bound yet"));
        }
        let is_small = claim.capacity_bytes < claim.requested_bytes;
        is_small.then(|| format!("the volume of {name} is being expanded"))
    });
    let refused = facts.plan.refusals.iter().find_map(|refusal| {
        use crate::decide::SpecRefusal::{VolumeShrink, VolumeExpansion};
        matches!(refusal, VolumeShrink { .. } | VolumeExpansion { .. })
            .then(|| super::describe_refusal(refusal))
    });
    match problem.or(refused) {
        Some(problem) => build_update(
            ConditionStatus::False,
            "FoundWarningsForDataVolumes",
            problem,
        ),
        None => build_update(
            ConditionStatus::True,
            "NoWarningsFoundForDataVolumes",
            "all volumes are bound and as large as asked for",
        ),
    }
}

fn check_cluster_ids(facts: &Facts<'_>) -> ConditionUpdate {
    // What a member said before it fell silent may be of a cluster it has left.
    let is_fresh = |lease: &&ObservedMemberLease| {
        let age = lease
            .renewed_at
            .map(|renewed| facts.now.duration_since(renewed));
        age.is_some_and(|age| age.unsigned_abs() <= facts.thresholds.unknown)
    };
    let told = facts
        .observed
        .leases
        .values()
        .filter(is_fresh)
        .filter_map(|lease| lease.holder.as_ref()?.cluster_id);
    let answered: Vec<ClusterId> = match &facts.observed.membership {
        ObservedMembership::Known(members) => {
            let serving = members
                .list
                .iter()
                .filter_map(|member| member.status.as_ref());
            serving.map(|answer| answer.cluster_id).collect()
        }
        ObservedMembership::NotQueried | ObservedMembership::NoQuorum { .. } => Vec::new(),
    };
    let clusters: BTreeSet<ClusterId> = told.chain(answered).collect();
    match clusters.len() {
        0 => build_update(
            ConditionStatus::Unknown,
            "NoClusterIDDetected",
            "no member has told which cluster it is in",
        ),
        1 => build_update(
            ConditionStatus::False,
            "OneClusterIDDetected",
            "all members are in one cluster",
        ),
        _ => {
            let list: Vec<String> = clusters.iter().map(ToString::to_string).collect();
            let message = format!("members are in different clusters: {}", list.join(", "));
            build_update(ConditionStatus::True, "MultipleClusterIDsDetected", message)
        }
    }
}

fn check_bootstrapped(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> Option<ConditionUpdate> {
    let is_recorded = facts
        .previous_status()
        .is_some_and(|status| status.bootstrap_with_existing_cluster.is_some());
    if is_recorded {
        return Some(build_update(
            ConditionStatus::True,
            "BootstrapCompleted",
            "all members have joined",
        ));
    }
    facts
        .etcd
        .spec
        .etcd
        .bootstrap_with_existing_cluster
        .as_ref()?;
    let wanted = facts.desired.replicas as usize;
    let ready = members
        .iter()
        .filter(|member| member.status == MemberState::Ready)
        .count();
    let votes = facts.world().learner().is_none();
    Some(if ready >= wanted && votes && facts.world().has_quorum() {
        build_update(
            ConditionStatus::True,
            "BootstrapCompleted",
            "all members have joined",
        )
    } else {
        build_update(
            ConditionStatus::False,
            "BootstrapInProgress",
            format!("{ready} of {wanted} members have joined"),
        )
    })
}
