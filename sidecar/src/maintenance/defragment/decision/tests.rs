use super::super::observation::ObservedMember;
use super::*;

const LEADER: u64 = 2;

const HALF: Threshold = Threshold {
    free_percent: 50,
    minimum_bytes: 1000,
};

fn voter_status(member: u64) -> VoterStatus {
    VoterStatus {
        url: format!("http://m{member}"),
        leader: MemberId(LEADER),
        applied: RaftIndex(100_000 + member),
        db_bytes: 4000,
        used_bytes: 1000,
    }
}

fn member(id: u64, role: MemberRole) -> ObservedMember {
    ObservedMember {
        id: MemberId(id),
        name: format!("m{id}"),
        role,
    }
}

/// Three healthy voters with 75 percent free space; member 2 leads.
fn three_voters() -> ObservedCluster {
    let voter = |id| member(id, MemberRole::Voter(Ok(voter_status(id))));
    ObservedCluster {
        members: vec![voter(1), voter(2), voter(3)],
    }
}

fn update_voter(
    observed: &mut ObservedCluster,
    member: usize,
    change: impl FnOnce(&mut VoterStatus),
) {
    let MemberRole::Voter(Ok(vitals)) = &mut observed.members[member - 1].role else {
        panic!("{observed:?}")
    };
    change(vitals);
}

fn member_set(members: &[u64]) -> BTreeSet<MemberId> {
    members.iter().copied().map(MemberId).collect()
}

fn next_scheduled(observed: &ObservedCluster, defragmented: &[u64]) -> DefragmentStep {
    next_step(
        observed,
        &member_set(defragmented),
        DefragmentTrigger::Schedule,
        &HALF,
    )
}

fn next_over_threshold(observed: &ObservedCluster, defragmented: &[u64]) -> DefragmentStep {
    next_step(
        observed,
        &member_set(defragmented),
        DefragmentTrigger::Threshold,
        &HALF,
    )
}

fn defragment_step(member: u64) -> DefragmentStep {
    DefragmentStep::Defragment {
        member: MemberId(member),
        url: format!("http://m{member}"),
    }
}

fn move_leader_step(to: u64) -> DefragmentStep {
    DefragmentStep::MoveLeader {
        leader: MemberId(LEADER),
        url: format!("http://m{LEADER}"),
        to: MemberId(to),
    }
}

#[test]
fn leader_is_defragmented_last_after_transferring_leadership() {
    let mut observed = three_voters();
    assert_eq!(next_scheduled(&observed, &[]), defragment_step(1));
    assert_eq!(next_scheduled(&observed, &[1]), defragment_step(3));
    assert_eq!(next_scheduled(&observed, &[1, 3]), move_leader_step(3));
    for id in 1..=3 {
        update_voter(&mut observed, id, |vitals| vitals.leader = MemberId(3));
    }
    assert_eq!(next_scheduled(&observed, &[1, 3]), defragment_step(2));
    assert_eq!(next_scheduled(&observed, &[1, 2, 3]), DefragmentStep::Done);
}

#[test]
fn leadership_is_transferred_to_the_most_up_to_date_follower() {
    let mut observed = three_voters();
    update_voter(&mut observed, 1, |vitals| {
        vitals.applied = RaftIndex(100_009);
    });
    assert_eq!(next_scheduled(&observed, &[1, 3]), move_leader_step(1));
}

#[test]
fn scheduled_defragmentation_ignores_free_space() {
    let mut observed = three_voters();
    update_voter(&mut observed, 1, |vitals| vitals.used_bytes = 4000);
    assert_eq!(next_scheduled(&observed, &[]), defragment_step(1));
}

#[test]
fn threshold_selects_only_members_above_it() {
    let mut observed = three_voters();
    update_voter(&mut observed, 1, |vitals| vitals.used_bytes = 2001); // 49 percent free
    update_voter(&mut observed, 3, |vitals| vitals.used_bytes = 2000); // 50
    assert_eq!(next_over_threshold(&observed, &[]), defragment_step(3));
    update_voter(&mut observed, 3, |vitals| {
        (vitals.db_bytes, vitals.used_bytes) = (999, 1);
    });
    assert_eq!(next_over_threshold(&observed, &[]), move_leader_step(3));
    update_voter(&mut observed, 2, |vitals| vitals.used_bytes = 4000);
    assert_eq!(next_over_threshold(&observed, &[]), DefragmentStep::Done);
    // The used size may exceed the file size read a moment before, and the file may be empty.
    update_voter(&mut observed, 2, |vitals| vitals.used_bytes = 5000);
    update_voter(&mut observed, 1, |vitals| {
        (vitals.db_bytes, vitals.used_bytes) = (0, 0);
    });
    assert_eq!(next_over_threshold(&observed, &[]), DefragmentStep::Done);
}

#[test]
fn no_member_is_defragmented_while_a_voter_is_unhealthy() {
    for problem in [
        VoterProblem::NeverStarted,
        VoterProblem::NoLeader,
        VoterProblem::Unreachable {
            reason: "status: no answer within 5s".to_owned(),
        },
        VoterProblem::ReportsError {
            text: "memberID:1 alarm:CORRUPT".to_owned(),
        },
    ] {
        let mut observed = three_voters();
        observed.members[2].role = MemberRole::Voter(Err(problem.clone()));
        let member = MemberId(3);
        assert_eq!(
            next_scheduled(&observed, &[]),
            DefragmentStep::Refuse(DefragmentRefusal::Unhealthy { member, problem })
        );
    }
}

#[test]
fn no_member_is_defragmented_while_a_voter_lags() {
    let mut observed = three_voters();
    update_voter(&mut observed, 1, |vitals| {
        vitals.applied = RaftIndex(90_003);
    });
    assert_eq!(next_scheduled(&observed, &[]), defragment_step(1));
    update_voter(&mut observed, 1, |vitals| {
        vitals.applied = RaftIndex(90_002);
    });
    let (member, entries) = (MemberId(1), 10_001);
    assert_eq!(
        next_scheduled(&observed, &[]),
        DefragmentStep::Refuse(DefragmentRefusal::Lagging { member, entries })
    );
}

#[test]
fn no_member_is_defragmented_without_an_agreed_leader() {
    let mut observed = three_voters();
    update_voter(&mut observed, 3, |vitals| vitals.leader = MemberId(3));
    assert_eq!(
        next_scheduled(&observed, &[]),
        DefragmentStep::Refuse(DefragmentRefusal::NoAgreedLeader)
    );
    let mut observed = three_voters();
    for id in 1..=3 {
        update_voter(&mut observed, id, |vitals| vitals.leader = MemberId(9));
    }
    assert_eq!(
        next_scheduled(&observed, &[]),
        DefragmentStep::Refuse(DefragmentRefusal::NoAgreedLeader)
    );
}

#[test]
fn learner_is_not_defragmented_and_does_not_block_voters() {
    let mut observed = three_voters();
    observed.members.insert(0, member(7, MemberRole::Learner));
    assert_eq!(next_scheduled(&observed, &[]), defragment_step(1));
    assert_eq!(next_scheduled(&observed, &[1, 2, 3]), DefragmentStep::Done);
    observed.members.truncate(1);
    assert_eq!(
        next_scheduled(&observed, &[]),
        DefragmentStep::Refuse(DefragmentRefusal::NoVoters)
    );
}

#[test]
fn single_member_is_defragmented_on_schedule_only() {
    let mut observed = three_voters();
    observed.members = vec![observed.members[1].clone(), member(7, MemberRole::Learner)];
    assert_eq!(next_scheduled(&observed, &[]), defragment_step(2));
    assert_eq!(
        next_over_threshold(&observed, &[]),
        DefragmentStep::Refuse(DefragmentRefusal::SingleMember)
    );
    assert_eq!(next_scheduled(&observed, &[2]), DefragmentStep::Done);
}
