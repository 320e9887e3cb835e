//! The conditions, each a function of what is seen.

use std::collections::BTreeSet;

use mainstay_crds::etcd::{EtcdMemberStatus, MemberState};
use mainstay_crds::{Condition, ConditionStatus, ConditionType};
use mainstay_ids::ClusterId;

use super::{Facts, backup, clock, recovery, upkeep};
use crate::decide::{Refusal, quorum};
use crate::observe::{Membership, Ordinal, SeenLease};

/// The reason of a condition that keeps its status because nobody looks: the cluster sleeps.
pub(crate) const NOT_CHECKED: &str = "NotChecked";

/// What a condition says now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Says {
    pub(super) status: ConditionStatus,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

pub(super) fn says(
    status: ConditionStatus,
    reason: &'static str,
    message: impl Into<String>,
) -> Says {
    Says {
        status,
        reason,
        message: message.into(),
    }
}

/// All of them, by name; those of other parts as they were.
pub(super) fn all(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> Vec<Condition> {
    use ConditionType as Type;
    let mut computed = vec![
        (Type::Ready, Some(ready(facts, members))),
        (Type::AllMembersReady, Some(all_ready(facts, members))),
        (Type::AllMembersUpdated, Some(all_updated(facts))),
        (Type::BackupReady, backup::ready(facts)),
        (Type::DataVolumesReady, Some(volumes(facts))),
        (Type::ClusterIDMismatch, Some(mismatch(facts))),
        (
            Type::BootstrappedWithExistingCluster,
            bootstrapped(facts, members),
        ),
        (Type::RecoveryRequired, recovery::required(facts)),
    ];
    // Those of the upkeep stay as they are until there is something new to tell.
    let upkeep = [
        (
            Type::LastSnapshotCompactionSucceeded,
            upkeep::compaction(facts),
        ),
        (Type::LastRestoreDrillSucceeded, upkeep::drill(facts)),
    ];
    computed.extend(upkeep.into_iter().filter(|(_, says)| says.is_some()));
    let is_ours = |type_: &Type| computed.iter().any(|(ours, _)| ours == type_);
    let before = facts.before().and_then(|status| status.conditions.as_ref());
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
        let says = if facts.wanted.replicas == 0 && !is_of_upkeep {
            says.map(|_| not_checked(facts, &type_))
        } else {
            says
        };
        conditions.extend(says.map(|says| dated(facts, type_, says)));
    }
    conditions.sort_by(|a, b| a.type_.as_str().cmp(b.type_.as_str()));
    conditions
}

/// Of a cluster that sleeps, what was true stays.
fn not_checked(facts: &Facts<'_>, type_: &ConditionType) -> Says {
    let before = facts
        .condition(type_)
        .map(|condition| condition.status.clone());
    let message = "the cluster is scaled down to no members";
    says(
        before.unwrap_or(ConditionStatus::Unknown),
        NOT_CHECKED,
        message,
    )
}

fn dated(facts: &Facts<'_>, type_: ConditionType, says: Says) -> Condition {
    let before = facts.condition(&type_);
    let now = clock::time(facts.now);
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
fn electorate(facts: &Facts<'_>) -> usize {
    let world = facts.world();
    let is_newcomer = |ordinal: Ordinal| {
        let held = facts
            .seen
            .leases
            .get(&ordinal)
            .is_some_and(|l| l.held.is_some());
        world
            .member(ordinal)
            .map_or(!held, |member| member.is_learner)
    };
    let expected = (0..facts.wanted.replicas).filter(|n| !is_newcomer(Ordinal(*n)));
    expected.count().max(world.voters().count())
}

/// Whether the cluster can decide: over those there should be, by what etcd says where it was asked.
fn ready(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> Says {
    let world = facts.world();
    if world.has_quorum() {
        let well = world.voters().filter(|v| v.is_healthy()).count();
        let of = electorate(facts);
        let message = format!("{well} of {of} members vote and are healthy");
        return if well >= quorum(of) {
            says(ConditionStatus::True, "Quorate", message)
        } else {
            says(ConditionStatus::False, "QuorumLost", message)
        };
    }
    if members.is_empty() {
        return says(
            ConditionStatus::Unknown,
            "NoMembersInStatus",
            "no member has registered yet",
        );
    }
    let of = facts.wanted.replicas.max(world.size()) as usize;
    let count = |state: MemberState| {
        members
            .iter()
            .filter(|member| member.status == state)
            .count()
    };
    let (ready, unknown) = (count(MemberState::Ready), count(MemberState::Unknown));
    let message = format!("{ready} of {of} members are ready");
    if ready >= quorum(of) {
        says(ConditionStatus::True, "Quorate", message)
    } else if ready + unknown >= quorum(of) {
        says(
            ConditionStatus::Unknown,
            "MembersUnknown",
            format!("{message}, {unknown} give no sign of life"),
        )
    } else {
        says(ConditionStatus::False, "QuorumLost", message)
    }
}

fn all_ready(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> Says {
    if members.is_empty() {
        return says(
            ConditionStatus::Unknown,
            "NoMembersInStatus",
            "no member has registered yet",
        );
    }
    let wanted = facts.wanted.replicas as usize;
    let unready = members
        .iter()
        .find(|member| member.status != MemberState::Ready);
    match unready {
        Some(member) => says(
            ConditionStatus::False,
            "NotAllMembersReady",
            format!("{} is {}: {}", member.name, member.status, member.reason),
        ),
        None if members.len() < wanted => says(
            ConditionStatus::False,
            "NotAllMembersReady",
            format!("{} of {wanted} members have registered", members.len()),
        ),
        None => says(
            ConditionStatus::True,
            "AllMembersReady",
            "all members are ready",
        ),
    }
}

/// Whether every member runs what the spec asks for: all of it, not only what was applied so far.
fn all_updated(facts: &Facts<'_>) -> Says {
    let not = |message: String| says(ConditionStatus::False, "NotAllMembersUpdated", message);
    let Some(set) = &facts.seen.set else {
        return says(
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
    if set.replicas != facts.wanted.replicas {
        return not(format!(
            "{} of {} members are there",
            set.replicas, facts.wanted.replicas
        ));
    }
    let is_outdated = |ordinal: &Ordinal| {
        let pod = facts.seen.pods.get(ordinal);
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
        .find(|refusal| is_behind(facts, refusal))
    {
        return not(super::describe_refusal(refusal));
    }
    let shape = facts.plan.shape.as_ref();
    if shape.is_some_and(|shape| {
        shape.holds != crate::decide::Holds::default() || shape.peer_stage != set.peer_stage
    }) {
        return not("a part of the spec is still to come".to_owned());
    }
    says(
        ConditionStatus::True,
        "AllMembersUpdated",
        "all members are up to date",
    )
}

/// Whether a refusal means that the spec asks for more than there is. Being suspended alone does not.
fn is_behind(facts: &Facts<'_>, refusal: &Refusal) -> bool {
    let is_observed = facts.known.observed_generation == Some(facts.wanted.generation);
    !(is_observed && matches!(refusal, Refusal::Suspended))
}

fn volumes(facts: &Facts<'_>) -> Says {
    let world = facts.world();
    let problem = world.ordinals().find_map(|ordinal| {
        let name = facts.wanted.pod(ordinal);
        let Some(claim) = facts.seen.claims.get(&ordinal) else {
            return Some(format!("the volume claim of {name} does not exist"));
        };
        if claim.is_lost {
            return Some(format!("the volume of {name} is gone"));
        }
        if let Some(complaint) = &claim.complaint {
            return Some(format!("the volume of {name}: {complaint}"));
        }
        if !claim.is_bound {
            return Some(format!("the volume claim of {name} is not bound yet"));
        }
        let is_small = claim.capacity_bytes < claim.requested_bytes;
        is_small.then(|| format!("the volume of {name} is being expanded"))
    });
    let refused = facts.plan.refusals.iter().find_map(|refusal| {
        use crate::decide::Refusal::{SmallerVolume, VolumeExpansion};
        matches!(refusal, SmallerVolume { .. } | VolumeExpansion { .. })
            .then(|| super::describe_refusal(refusal))
    });
    match problem.or(refused) {
        Some(problem) => says(
            ConditionStatus::False,
            "FoundWarningsForDataVolumes",
            problem,
        ),
        None => says(
            ConditionStatus::True,
            "NoWarningsFoundForDataVolumes",
            "all volumes are bound and as large as asked for",
        ),
    }
}

fn mismatch(facts: &Facts<'_>) -> Says {
    // What a member said before it fell silent may be of a cluster it has left.
    let is_fresh = |lease: &&SeenLease| {
        let age = lease
            .renewed
            .map(|renewed| facts.now.duration_since(renewed));
        age.is_some_and(|age| age.unsigned_abs() <= facts.thresholds.unknown)
    };
    let told = facts
        .seen
        .leases
        .values()
        .filter(is_fresh)
        .filter_map(|lease| lease.held.as_ref()?.cluster);
    let answered: Vec<ClusterId> = match &facts.seen.membership {
        Membership::Known(members) => {
            let answers = members
                .list
                .iter()
                .filter_map(|member| member.answer.as_ref());
            answers.map(|answer| answer.cluster).collect()
        }
        Membership::Unasked | Membership::Silent { .. } => Vec::new(),
    };
    let clusters: BTreeSet<ClusterId> = told.chain(answered).collect();
    match clusters.len() {
        0 => says(
            ConditionStatus::Unknown,
            "NoClusterIDDetected",
            "no member has told which cluster it is in",
        ),
        1 => says(
            ConditionStatus::False,
            "OneClusterIDDetected",
            "all members are in one cluster",
        ),
        _ => {
            let list: Vec<String> = clusters.iter().map(ToString::to_string).collect();
            let message = format!("members are in different clusters: {}", list.join(", "));
            says(ConditionStatus::True, "MultipleClusterIDsDetected", message)
        }
    }
}

fn bootstrapped(facts: &Facts<'_>, members: &[EtcdMemberStatus]) -> Option<Says> {
    let is_recorded = facts
        .before()
        .is_some_and(|status| status.bootstrap_with_existing_cluster.is_some());
    if is_recorded {
        return Some(says(
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
    let wanted = facts.wanted.replicas as usize;
    let ready = members
        .iter()
        .filter(|member| member.status == MemberState::Ready)
        .count();
    let votes = facts.world().learner().is_none();
    Some(if ready >= wanted && votes && facts.world().has_quorum() {
        says(
            ConditionStatus::True,
            "BootstrapCompleted",
            "all members have joined",
        )
    } else {
        says(
            ConditionStatus::False,
            "BootstrapInProgress",
            format!("{ready} of {wanted} members have joined"),
        )
    })
}
