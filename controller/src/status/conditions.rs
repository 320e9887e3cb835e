//! Conditions, each a function of the observed state.

use std::collections::BTreeSet;

use mainstay_crds::etcd::{EtcdMemberStatus, MemberState};
use mainstay_crds::{Condition, ConditionStatus, ConditionType};
use mainstay_ids::ClusterId;

use super::{Facts, backup, recovery, timestamps, upkeep};
use crate::messages::describe_refusal;
use crate::model::{
    NOT_CHECKED, ObservedMemberLease, ObservedMembership, Ordinal, SpecRefusal, quorum,
};

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

/// All conditions, sorted by type. Conditions of other writers are kept unchanged.
pub(super) fn compute_conditions(
    facts: &Facts<'_>,
    members: &[EtcdMemberStatus],
) -> Vec<Condition> {
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
        (
            Type::RecoveryRequired,
            recovery::check_recovery_required(facts),
        ),
    ];
    // Results of compactions and drills stay until a newer Job has ended.
    let upkeep = [
        (
            Type::LastSnapshotCompactionSucceeded,
            upkeep::check_compaction(facts),
        ),
        (Type::LastRestoreDrillSucceeded, upkeep::check_drill(facts)),
    ];
    computed.extend(upkeep.into_iter().filter(|(_, update)| update.is_some()));
    let is_ours = |type_: &Type| computed.iter().any(|(ours, _)| ours == type_);
    let before = facts
        .previous_status()
        .and_then(|status| status.conditions.as_ref());
    let others = before
        .into_iter()
        .flatten()
        .filter(|condition| !is_ours(&condition.type_));
    let mut conditions: Vec<Condition> = others.cloned().collect();
    for (type_, update) in computed {
        let is_of_upkeep = matches!(
            type_,
            Type::LastSnapshotCompactionSucceeded | Type::LastRestoreDrillSucceeded
        );
        // Compactions and drills do not need members, so they are checked while hibernated as well.
        let update = if facts.desired.replicas == 0 && !is_of_upkeep {
            update.map(|_| keep_status_unchecked(facts, &type_))
        } else {
            update
        };
        conditions.extend(update.map(|update| stamp_condition(facts, type_, update)));
    }
    conditions.sort_by(|a, b| a.type_.as_str().cmp(b.type_.as_str()));
    conditions
}

/// A hibernated cluster keeps the last status of each condition, as with etcd-druid.
fn keep_status_unchecked(facts: &Facts<'_>, type_: &ConditionType) -> ConditionUpdate {
    let before = facts
        .previous_condition(type_)
        .map(|condition| condition.status.clone());
    let message = "Cluster is hibernated (spec.replicas is 0)";
    build_update(
        before.unwrap_or(ConditionStatus::Unknown),
        NOT_CHECKED,
        message,
    )
}

fn stamp_condition(facts: &Facts<'_>, type_: ConditionType, update: ConditionUpdate) -> Condition {
    let before = facts.previous_condition(&type_);
    let now = timestamps::to_whole_seconds(facts.now);
    // lastTransitionTime follows the status, lastUpdateTime also reason and message.
    let same_status = before.filter(|before| before.status == update.status);
    let same = same_status
        .filter(|before| before.reason == update.reason && before.message == update.message);
    Condition {
        last_transition_time: same_status
            .map_or_else(|| now.clone(), |before| before.last_transition_time.clone()),
        last_update_time: same.map_or(now, |before| before.last_update_time.clone()),
        type_,
        status: update.status,
        reason: update.reason.to_owned(),
        message: update.message,
    }
}

/// The number of members that quorum is computed over: those of the spec, or all voters while the cluster scales in.
/// Members that have never joined do not count until they vote, so that a scale-out does not report a lost quorum.
fn count_expected_voters(facts: &Facts<'_>) -> usize {
    let world = facts.world();
    // A member without a Lease holder has never run; a learner does not vote.
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

/// Whether the cluster has quorum, by etcd's own member list where it was queried, else by the Leases.
fn check_ready(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> ConditionUpdate {
    let world = facts.world();
    if world.has_quorum() {
        let healthy = world.voters().filter(|v| v.is_healthy()).count();
        let expected_voters = count_expected_voters(facts);
        let message = format!("{healthy} of {expected_voters} members are healthy voters");
        // One member restored from three has quorum in its own member list; the cluster of the spec has not.
        return if healthy >= quorum(expected_voters) {
            build_update(ConditionStatus::True, "Quorate", message)
        } else {
            build_update(ConditionStatus::False, "QuorumLost", message)
        };
    }
    // Without a quorum etcd has no current member list: fall back to the Leases.
    if members.is_empty() {
        return build_update(
            ConditionStatus::Unknown,
            "NoMembersInStatus",
            "No member has registered yet",
        );
    }
    let expected_voters = facts.desired.replicas.max(world.size()) as usize;
    let count = |state: MemberState| {
        members
            .iter()
            .filter(|member| member.status == state)
            .count()
    };
    let (ready, unknown) = (count(MemberState::Ready), count(MemberState::Unknown));
    let message = format!("{ready} of {expected_voters} members are ready");
    if ready >= quorum(expected_voters) {
        build_update(ConditionStatus::True, "Quorate", message)
    } else if ready + unknown >= quorum(expected_voters) {
        // Quorum may exist: an expired Lease is no proof that a member is down.
        build_update(
            ConditionStatus::Unknown,
            "MembersUnknown",
            format!("{message}, {unknown} unknown (Lease expired)"),
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
            "No member has registered yet",
        );
    }
    let desired = facts.desired.replicas as usize;
    let unready = members
        .iter()
        .find(|member| member.status != MemberState::Ready);
    match unready {
        Some(member) => build_update(
            ConditionStatus::False,
            "NotAllMembersReady",
            format!(
                "Member {} is {}: {}",
                member.name, member.status, member.reason
            ),
        ),
        None if members.len() < desired => build_update(
            ConditionStatus::False,
            "NotAllMembersReady",
            format!("{} of {desired} members have registered", members.len()),
        ),
        None => build_update(
            ConditionStatus::True,
            "AllMembersReady",
            "All members are ready",
        ),
    }
}

/// Whether every member runs the whole spec, including the parts that are not applied yet.
fn check_all_updated(facts: &Facts<'_>) -> ConditionUpdate {
    let not =
        |message: String| build_update(ConditionStatus::False, "NotAllMembersUpdated", message);
    let Some(set) = &facts.observed.stateful_set else {
        return build_update(
            ConditionStatus::Unknown,
            "StatefulSetNotFound",
            "StatefulSet not created yet",
        );
    };
    // Until the StatefulSet controller has observed the change, updateRevision is that of the old template.
    if !set.is_observed {
        return not("StatefulSet changed and not yet observed by its controller".to_owned());
    }
    // Scaling proceeds one member at a time, so the StatefulSet may lag behind the spec.
    if set.replicas != facts.desired.replicas {
        return not(format!(
            "StatefulSet has {} of {} replicas",
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
            "{outdated} of {} members are outdated",
            set.replicas
        ));
    }
    // All pods match the template, but the template does not have the whole spec.
    if let Some(refusal) = facts
        .plan
        .refusals
        .iter()
        .find(|refusal| is_update_pending(facts, refusal))
    {
        return not(describe_refusal(refusal));
    }
    let shape = facts.plan.effective_spec.as_ref();
    if shape.is_some_and(|shape| {
        shape.held_fields != crate::model::HeldFields::default()
            || shape.peer_tls_stage != set.peer_tls_stage
    }) {
        return not("Part of the spec is not applied yet".to_owned());
    }
    build_update(
        ConditionStatus::True,
        "AllMembersUpdated",
        "All members are up to date",
    )
}

/// Whether a refusal leaves part of the spec unapplied. A suspended Etcd whose generation is observed has nothing pending.
fn is_update_pending(facts: &Facts<'_>, refusal: &SpecRefusal) -> bool {
    let is_observed = facts.last_known.observed_generation == Some(facts.desired.generation);
    !(is_observed && matches!(refusal, SpecRefusal::Suspended))
}

fn check_data_volumes(facts: &Facts<'_>) -> ConditionUpdate {
    let world = facts.world();
    let problem = world.ordinals().find_map(|ordinal| {
        let name = facts.desired.pod_name(ordinal);
        let Some(pvc) = facts.observed.pvcs.get(&ordinal) else {
            return Some(format!("PVC of {name} does not exist"));
        };
        // Phase Lost: the PV is deleted, and the PVC never binds again.
        if pvc.is_lost {
            return Some(format!("Volume of {name} is lost"));
        }
        if let Some(resize_error) = &pvc.resize_error {
            return Some(format!("Volume of {name}: {resize_error}"));
        }
        if !pvc.is_bound {
            return Some(format!("PVC of {name} is not bound yet"));
        }
        let is_small = pvc.capacity_bytes < pvc.requested_bytes;
        is_small.then(|| format!("Volume of {name} is being expanded"))
    });
    let refused = facts.plan.refusals.iter().find_map(|refusal| {
        use crate::model::SpecRefusal::{VolumeExpansion, VolumeShrink};
        matches!(refusal, VolumeShrink { .. } | VolumeExpansion { .. })
            .then(|| describe_refusal(refusal))
    });
    // A problem of an existing volume is more urgent than a refused change.
    match problem.or(refused) {
        Some(problem) => build_update(
            ConditionStatus::False,
            "FoundWarningsForDataVolumes",
            problem,
        ),
        None => build_update(
            ConditionStatus::True,
            "NoWarningsFoundForDataVolumes",
            "All volumes are bound and have the requested size",
        ),
    }
}

fn check_cluster_ids(facts: &Facts<'_>) -> ConditionUpdate {
    // An expired Lease may carry the ID of a cluster that the member has left since.
    let is_fresh = |lease: &&ObservedMemberLease| {
        let age = lease
            .renewed_at
            .map(|renewed| facts.now.duration_since(renewed));
        age.is_some_and(|age| age.unsigned_abs() <= facts.thresholds.unknown)
    };
    let reported = facts
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
    let clusters: BTreeSet<ClusterId> = reported.chain(answered).collect();
    match clusters.len() {
        0 => build_update(
            ConditionStatus::Unknown,
            "NoClusterIDDetected",
            "No member has reported its cluster ID",
        ),
        1 => build_update(
            ConditionStatus::False,
            "OneClusterIDDetected",
            "All members report the same cluster ID",
        ),
        _ => {
            let list: Vec<String> = clusters.iter().map(ToString::to_string).collect();
            let message = format!("Members report different cluster IDs: {}", list.join(", "));
            build_update(ConditionStatus::True, "MultipleClusterIDsDetected", message)
        }
    }
}

fn check_bootstrapped(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> Option<ConditionUpdate> {
    // Joining happens once: later changes of the spec do not reopen it.
    let is_recorded = facts
        .previous_status()
        .is_some_and(|status| status.bootstrap_with_existing_cluster.is_some());
    if is_recorded {
        return Some(build_update(
            ConditionStatus::True,
            "BootstrapCompleted",
            "All members have joined",
        ));
    }
    facts
        .etcd
        .spec
        .etcd
        .bootstrap_with_existing_cluster
        .as_ref()?;
    let desired = facts.desired.replicas as usize;
    let ready = members
        .iter()
        .filter(|member| member.status == MemberState::Ready)
        .count();
    let votes = facts.world().learner().is_none();
    Some(if ready >= desired && votes && facts.world().has_quorum() {
        build_update(
            ConditionStatus::True,
            "BootstrapCompleted",
            "All members have joined",
        )
    } else {
        build_update(
            ConditionStatus::False,
            "BootstrapInProgress",
            format!("{ready} of {desired} members have joined"),
        )
    })
}
