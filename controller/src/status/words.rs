//! Decisions in words for people.

use crate::decide::{Blocker, Change, Refusal, Removal, Restart, Step, UpgradeRule, Useless};
use crate::observe::Ordinal;
use crate::quantity::quantity;
use crate::validate::{MOST_MEMBERS, UNPROTECTED, WITHOUT_SNAPSHOT, Wanted};

/// What a step does, or what it waits for.
pub fn describe_step(step: &Step, wanted: &Wanted) -> String {
    let pod = |ordinal: &Ordinal| wanted.pod(*ordinal);
    match step {
        Step::StopRolling => "the StatefulSet is kept from replacing pods by itself".to_owned(),
        Step::Snapshot { before } => format!("a full snapshot is taken before {}", change(*before)),
        Step::Resize { from, to } => format!("the number of pods goes from {from} to {to}"),
        Step::DeletePod {
            ordinal, because, ..
        } => format!("{} is restarted: {}", pod(ordinal), restart(*because)),
        Step::DiscardClaim {
            ordinal, because, ..
        } => {
            format!(
                "the volume claim of {} is given up: {}",
                pod(ordinal),
                useless(*because)
            )
        }
        Step::AddLearner { ordinal } => format!("{} is added as a learner", pod(ordinal)),
        Step::Promote { ordinal, .. } => format!("{} gets its vote", pod(ordinal)),
        Step::RemoveMember {
            ordinal, because, ..
        } => {
            format!(
                "{} is removed from the cluster: {}",
                pod(ordinal),
                removal(*because)
            )
        }
        Step::MoveLeader { from, to } => format!("leadership moves from {from} to {to}"),
        Step::UpdatePeerUrls { ordinal, .. } => {
            format!("the cluster is told where {} listens", pod(ordinal))
        }
        Step::ExpandClaims { ordinals, bytes } => {
            format!(
                "{} volumes are expanded to {}",
                ordinals.len(),
                quantity(*bytes).0
            )
        }
        Step::RecreateSet { .. } => "the StatefulSet is made again around its pods".to_owned(),
        Step::Recover(step) => super::recovery::describe(step, wanted),
        Step::Wait { on } => describe_blocker(on, wanted),
    }
}

/// What is waited for.
pub fn describe_blocker(on: &Blocker, wanted: &Wanted) -> String {
    let pod = |ordinal: &Ordinal| wanted.pod(*ordinal);
    match on {
        Blocker::SetUnobserved => "waits for the controller of StatefulSets".to_owned(),
        Blocker::PodReturns { ordinal } => format!("waits for {} to come back", pod(ordinal)),
        Blocker::UpdatedUnwell { ordinal } => format!(
            "waits for {}, which was updated and is not well",
            pod(ordinal)
        ),
        Blocker::MemberUnwell { ordinal } => {
            format!("waits for {}, which is not well", pod(ordinal))
        }
        Blocker::StrangerUnwell { member } => {
            format!("waits for member {member}, which is not well")
        }
        Blocker::LearnerBehind { ordinal } => format!("waits for {} to catch up", pod(ordinal)),
        Blocker::StrangeLearner { member } => {
            format!("waits for learner {member}, which is none of this Etcd's")
        }
        Blocker::NoQuorum => "waits for a quorum of members to answer".to_owned(),
        Blocker::QuorumAtRisk {
            ordinal,
            well,
            voters,
        } => format!(
            "refuses to remove {}: {well} of the {voters} members left would be healthy, which is no quorum",
            pod(ordinal)
        ),
        Blocker::SnapshotRuns { before } => {
            format!("waits for the snapshot before {}", change(*before))
        }
        Blocker::SnapshotFailed { before, why, .. } => {
            format!(
                "there is no {} without a snapshot, which failed: {why} (the annotation {WITHOUT_SNAPSHOT}={} goes on without it)",
                change(*before),
                wanted.generation
            )
        }
        Blocker::ClaimGoes { ordinal } => {
            format!("waits for the old volume claim of {} to go", pod(ordinal))
        }
        Blocker::Adoption => "leaves what etcd-druid made as it is: the etcd that is asked for cannot follow the one that runs".to_owned(),
        Blocker::SetGoes => "waits for the old StatefulSet to go".to_owned(),
        Blocker::Founding => "waits for the cluster to come up for the first time".to_owned(),
        Blocker::RecoveryNeeded(hold) => super::recovery::describe_hold(hold, wanted),
    }
}

/// What was asked for and is not given.
pub fn describe_refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::ImpossibleReplicas { replicas } => format!("spec.replicas is {replicas}: a cluster has no members or some, and at most {MOST_MEMBERS}"),
        Refusal::SmallerVolume { have, want } => format!(
            "spec.storageCapacity is {}, and volumes of {} do not shrink",
            quantity(*want).0,
            quantity(*have).0
        ),
        Refusal::VolumeExpansion { why } => format!("the volumes cannot be expanded: {why}"),
        Refusal::Upgrade { from, to, rule } => format!("etcd {to} cannot follow {from}: {}", upgrade_rule(*rule)),
        Refusal::ExternalMembers => "members at addresses of somebody else are left alone by this version".to_owned(),
        Refusal::NotRequested { generation } => format!(
            "generation {generation} of the spec waits for the annotation druid.gardener.cloud/operation=reconcile"
        ),
        Refusal::StoppedByHand => format!("the pods were stopped by hand, and stay so while there is the annotation {UNPROTECTED}"),
        Refusal::Suspended => {
            "reconciliation is suspended by the annotation druid.gardener.cloud/suspend-etcd-spec-reconcile".to_owned()
        }
    }
}

fn upgrade_rule(rule: UpgradeRule) -> &'static str {
    match rule {
        UpgradeRule::OneMinor => "one minor version at a time",
        UpgradeRule::LatePatchFirst => "3.6 follows 3.5.26 or later",
        UpgradeRule::NoDowngrade => "an older minor version is not installed over a newer one",
        UpgradeRule::SameMajor => "another major version",
    }
}

fn change(change: Change) -> &'static str {
    match change {
        Change::Hibernation => "hibernation",
        Change::Upgrade => "upgrade of etcd",
        Change::Rollout => "rollout",
    }
}

fn restart(because: Restart) -> &'static str {
    match because {
        Restart::OutdatedAndUnwell => "it is out of date and takes no part",
        Restart::Outdated => "it is out of date",
        Restart::VolumeGone => "its volume is gone",
        Restart::Removed => "its member was removed from the cluster",
        Restart::Crashes => "etcd ends again and again, so its data is checked again",
    }
}

fn useless(because: Useless) -> &'static str {
    match because {
        Useless::Corrupt => "its data is proven to be damaged",
        Useless::Foreign => "its data is of a member that was removed",
        Useless::VolumeGone => "its volume is gone",
        Useless::LeftBehind => "a removed member left it behind",
    }
}

fn removal(because: Removal) -> &'static str {
    match because {
        Removal::ScaleIn => "fewer members are wanted",
        Removal::Lost => "its data is lost",
    }
}
