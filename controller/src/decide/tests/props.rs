//! What no decision may ever do, over worlds nobody thought of.

use mainstay_ids::ClusterId;
use proptest::prelude::*;

use super::fixture::*;
use crate::decide::{Restart, Step, World, quorum};
use crate::observe::{
    Finding, Members, Membership, Ordinal, PeerStage, SeenMember, SnapshotRequest,
    Strategy as Replaces,
};

/// One place in a cluster: what may be there.
#[derive(Clone, Debug)]
struct Place {
    pod: Option<(bool, bool, bool, Option<Finding>)>,
    claim: Option<(bool, bool)>,
    member: Option<(bool, bool, bool)>,
}

fn finding() -> impl Strategy<Value = Option<Finding>> {
    prop_oneof![
        4 => Just(Some(Finding::Good)),
        1 => Just(None),
        1 => Just(Some(Finding::Waits)),
        1 => Just(Some(Finding::NeedsRestore)),
        1 => Just(Some(Finding::Corrupt)),
        1 => Just(Some(Finding::Foreign)),
        1 => Just(Some(Finding::Refused)),
    ]
}

fn often(probability: f64) -> impl Strategy<Value = bool> {
    prop::bool::weighted(probability)
}

fn place() -> impl Strategy<Value = Place> {
    let pod = (often(0.8), often(0.1), often(0.4), finding());
    let claim = (often(0.1), often(0.1));
    let member = (often(0.15), often(0.8), often(0.1));
    (
        prop::option::weighted(0.9, pod),
        prop::option::weighted(0.9, claim),
        prop::option::weighted(0.85, member),
    )
        .prop_map(|(pod, claim, member)| Place { pod, claim, member })
}

prop_compose! {
    fn worlds()(
        places in prop::collection::vec(place(), 0..7),
        size in 0_u32..6,
        wanted in 0_u32..6,
        leader in 0_u32..6,
        (is_known, is_observed, is_rolling, is_backed_up) in (often(0.8), often(0.9), often(0.05), often(0.5)),
        (has_set, is_accepted, tls, stage) in (often(0.95), often(0.8), any::<bool>(), 0_usize..3),
        (snapshot_age, running, image, bytes) in (0_i64..2_000, often(0.2), any::<bool>(), 0_u32..3),
    ) -> Scene {
        let mut scene = Scene::whole(0).replicas(wanted);
        if is_backed_up {
            scene = scene.backed_up(snapshot_age);
        }
        if running {
            scene.seen.snapshot = SnapshotRequest::Running;
        }
        scene.wanted.peers.tls = tls;
        scene.wanted.generation = if is_accepted { 1 } else { 2 };
        scene.wanted.storage_bytes = u64::from(bytes) * (16 << 30);
        if image {
            scene.wanted.etcd_image = "etcd:v3.6.0".to_owned();
        }
        let mut set = set(size);
        set.is_observed = is_observed;
        set.update_revision = Some(NEW.to_owned());
        set.strategy = if is_rolling { Replaces::Rolling } else { Replaces::OnDelete };
        set.peer_stage = [PeerStage::Off, PeerStage::Prepared, PeerStage::On][stage];
        scene.seen.set = has_set.then_some(set);
        let mut list = Vec::new();
        for (ordinal, place) in (0_u32..).zip(places) {
            if let Some((is_ready, is_deleting, is_new, finding)) = place.pod {
                let mut pod = pod(ordinal, if is_new { NEW } else { OLD });
                (pod.is_ready, pod.is_deleting, pod.finding) = (is_ready, is_deleting, finding);
                scene.seen.pods.insert(Ordinal(ordinal), pod);
            }
            if let Some((is_deleting, is_lost)) = place.claim {
                let mut claim = claim(ordinal);
                (claim.is_deleting, claim.is_lost) = (is_deleting, is_lost);
                scene.seen.claims.insert(Ordinal(ordinal), claim);
            }
            if let Some((is_learner, answers, is_unnamed)) = place.member {
                let mut member = member(&scene.wanted, ordinal);
                member.is_learner = is_learner;
                member.answer = answers.then(|| answer(leader));
                if is_unnamed {
                    member.name.clear();
                }
                list.push(member);
            }
        }
        scene.seen.membership = if is_known {
            Membership::Known(Members { cluster: ClusterId(7), list })
        } else {
            Membership::Silent { why: "no leader".to_owned(), alive: std::collections::BTreeMap::new() }
        };
        scene
    }
}

/// What must hold of the step, whatever the world.
fn check(scene: &Scene) -> Result<(), TestCaseError> {
    let world = scene.world();
    match &scene.step() {
        Some(Step::DeletePod {
            ordinal,
            uid,
            because,
        }) => {
            prop_assert_eq!(&world.pod(*ordinal).unwrap().uid, uid);
            if world.takes_part(*ordinal) {
                prop_assert_eq!(*because, Restart::Outdated);
                check_restart(&world, *ordinal)?;
            }
        }
        Some(Step::RemoveMember { member, .. }) => {
            let mut list = world.members().unwrap().list.iter();
            let member = list.find(|one| one.id == *member).unwrap();
            prop_assert!(member.ordinal.is_some(), "a member of somebody else");
            if !member.is_learner {
                let (well, left) = world.without(member);
                prop_assert!(well >= quorum(left) && world.has_quorum());
                prop_assert!(!member.is_leader() || world.heir(member).is_none());
            }
        }
        Some(Step::Resize { from, to }) => check_resize(&world, *from, *to)?,
        // There is nothing behind it.
        Some(Step::DiscardClaim { ordinal, .. }) if world.members().is_none() => {
            prop_assert!(world.seen.claims[ordinal].is_lost);
            prop_assert!(!world.takes_part(*ordinal));
        }
        Some(Step::DiscardClaim { ordinal, .. }) => {
            let member = world.member(*ordinal);
            let is_nobodys = member.is_none_or(|member| member.name.is_empty());
            prop_assert!(world.members().is_some() && is_nobodys, "still a member");
            prop_assert!(!world.takes_part(*ordinal));
        }
        Some(Step::AddLearner { ordinal }) => {
            prop_assert!(world.learner().is_none() && world.has_quorum());
            prop_assert!(world.member(*ordinal).is_none());
        }
        Some(Step::Promote { member, .. }) => {
            let learner = world.learner().unwrap();
            prop_assert!(learner.id == *member && learner.is_healthy());
        }
        Some(Step::MoveLeader { from, to }) => {
            prop_assert!(world.leader().is_some_and(|leader| leader.id == *from));
            let mut voters = world.voters();
            prop_assert!(voters.any(|voter| voter.id == *to && voter.is_healthy() && to != from));
        }
        _ => {}
    }
    Ok(())
}

/// Of one who takes part.
fn check_restart(world: &World<'_>, ordinal: Ordinal) -> Result<(), TestCaseError> {
    let voters = world.voters().count();
    prop_assert_eq!(world.first_unwell(None), None, "somebody else is not well");
    prop_assert_eq!(world.missing(), None, "somebody else is away already");
    prop_assert!(
        voters <= 2 || voters > quorum(voters),
        "one less is no quorum"
    );
    let leads = world.member(ordinal).is_some_and(SeenMember::is_leader);
    prop_assert!(
        !leads || voters == 1,
        "it leads and somebody could take over"
    );
    Ok(())
}

/// How many pods the members there are, or were heard of, need.
fn last_known(world: &World<'_>) -> u32 {
    let held = world
        .seen
        .leases
        .iter()
        .filter(|(_, lease)| lease.held.is_some());
    let known: Vec<Ordinal> = match world.members() {
        Some(members) => members.list.iter().filter_map(|one| one.ordinal).collect(),
        None => held.map(|(ordinal, _)| *ordinal).collect(),
    };
    known.iter().max().map_or(0, |last| last.0 + 1)
}

fn check_resize(world: &World<'_>, from: u32, to: u32) -> Result<(), TestCaseError> {
    prop_assert_eq!(from, world.size());
    if to < from && to > 0 {
        prop_assert_eq!(to, from - 1);
        let is_out = world.members().is_some() && world.member(Ordinal(to)).is_none();
        prop_assert!(is_out, "still a member");
    }
    if to == 0 {
        prop_assert_eq!(world.wanted.replicas, 0);
    }
    // As many pods as there are members may come back at once; more come one at a time.
    if to > from && from > 0 && to > last_known(world) {
        prop_assert_eq!(to, from + 1);
        prop_assert_eq!(world.first_unwell(None), None);
        prop_assert!(world.learner().is_none());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8_000, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn no_step_costs_a_quorum_or_touches_what_is_not_ours(scene in worlds()) {
        check(&scene)?;
    }

    #[test]
    fn a_spec_nobody_accepted_changes_no_object(scene in worlds()) {
        let plan = scene.plan();
        if scene.wanted.generation == 2 {
            prop_assert_eq!(plan.shape, None);
            let is_change = matches!(plan.step, Some(Step::Resize { .. } | Step::ExpandClaims { .. } | Step::RecreateSet { .. }));
            prop_assert!(!is_change, "{:?}", plan.step);
        }
    }

    #[test]
    fn the_number_of_pods_changes_only_by_a_resize(scene in worlds()) {
        let plan = scene.plan();
        if let (Some(shape), Some(set)) = (&plan.shape, &scene.seen.set) {
            let is_resize = matches!(plan.step, Some(Step::Resize { .. }));
            prop_assert!(is_resize || shape.replicas == set.replicas);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_same_world_gives_the_same_plan(scene in worlds()) {
        prop_assert_eq!(scene.plan(), scene.clone().plan());
    }
}
