use super::super::observe::ObservedMember;
use super::*;

const LEADER: u64 = 2;

const HALF: Threshold = Threshold {
    free_percent: 50,
    minimum_bytes: 1000,
};

fn vitals(member: u64) -> Vitals {
    Vitals {
        url: format!("http://m{member}"),
        leader: MemberId(LEADER),
        applied: RaftIndex(100_000 + member),
        db_bytes: 4000,
        used_bytes: 1000,
    }
}

fn member(id: u64, role: Role) -> ObservedMember {
    ObservedMember {
        id: MemberId(id),
        name: format!("m{id}"),
        role,
    }
}

/// Three voters, all well and three quarters air; member 2 leads.
fn three() -> Observed {
    let voter = |id| member(id, Role::Voter(Ok(vitals(id))));
    Observed {
        members: vec![voter(1), voter(2), voter(3)],
    }
}

fn change(seen: &mut Observed, member: usize, change: impl FnOnce(&mut Vitals)) {
    let Role::Voter(Ok(vitals)) = &mut seen.members[member - 1].role else {
        panic!("{seen:?}")
    };
    change(vitals);
}

fn done(members: &[u64]) -> BTreeSet<MemberId> {
    members.iter().copied().map(MemberId).collect()
}

fn scheduled(seen: &Observed, had_turn: &[u64]) -> Step {
    next(seen, &done(had_turn), Trigger::Schedule, &HALF)
}

fn over_threshold(seen: &Observed, had_turn: &[u64]) -> Step {
    next(seen, &done(had_turn), Trigger::Threshold, &HALF)
}

fn turn(member: u64) -> Step {
    Step::Defragment {
        member: MemberId(member),
        url: format!("http://m{member}"),
    }
}

fn hand_over(to: u64) -> Step {
    Step::MoveLeader {
        leader: MemberId(LEADER),
        url: format!("http://m{LEADER}"),
        to: MemberId(to),
    }
}

#[test]
fn followers_come_first_and_the_leader_hands_over_before_its_turn() {
    let mut seen = three();
    assert_eq!(scheduled(&seen, &[]), turn(1));
    assert_eq!(scheduled(&seen, &[1]), turn(3));
    assert_eq!(scheduled(&seen, &[1, 3]), hand_over(3));
    for id in 1..=3 {
        change(&mut seen, id, |vitals| vitals.leader = MemberId(3));
    }
    assert_eq!(scheduled(&seen, &[1, 3]), turn(2));
    assert_eq!(scheduled(&seen, &[1, 2, 3]), Step::Done);
}

#[test]
fn leadership_goes_to_the_follower_that_is_furthest() {
    let mut seen = three();
    change(&mut seen, 1, |vitals| vitals.applied = RaftIndex(100_009));
    assert_eq!(scheduled(&seen, &[1, 3]), hand_over(1));
}

#[test]
fn a_schedule_asks_nobody_how_much_is_free() {
    let mut seen = three();
    change(&mut seen, 1, |vitals| vitals.used_bytes = 4000);
    assert_eq!(scheduled(&seen, &[]), turn(1));
}

#[test]
fn a_threshold_is_for_those_above_it() {
    let mut seen = three();
    change(&mut seen, 1, |vitals| vitals.used_bytes = 2001); // 49 percent free
    change(&mut seen, 3, |vitals| vitals.used_bytes = 2000); // 50
    assert_eq!(over_threshold(&seen, &[]), turn(3));
    change(&mut seen, 3, |vitals| {
        (vitals.db_bytes, vitals.used_bytes) = (999, 1);
    });
    assert_eq!(over_threshold(&seen, &[]), hand_over(3));
    change(&mut seen, 2, |vitals| vitals.used_bytes = 4000);
    assert_eq!(over_threshold(&seen, &[]), Step::Done);
    // In use may be more than the file was a moment ago, and the file may be empty.
    change(&mut seen, 2, |vitals| vitals.used_bytes = 5000);
    change(&mut seen, 1, |vitals| {
        (vitals.db_bytes, vitals.used_bytes) = (0, 0);
    });
    assert_eq!(over_threshold(&seen, &[]), Step::Done);
}

#[test]
fn nobody_has_a_turn_while_a_voter_is_not_well() {
    for ailment in [
        Ailment::NeverStarted,
        Ailment::NoLeader,
        Ailment::Silent {
            reason: "status: no answer within 5s".to_owned(),
        },
        Ailment::Complains {
            text: "memberID:1 alarm:CORRUPT".to_owned(),
        },
    ] {
        let mut seen = three();
        seen.members[2].role = Role::Voter(Err(ailment.clone()));
        let member = MemberId(3);
        assert_eq!(
            scheduled(&seen, &[]),
            Step::Refuse(Refusal::Unhealthy { member, ailment })
        );
    }
}

#[test]
fn a_member_that_lags_is_waited_for() {
    let mut seen = three();
    change(&mut seen, 1, |vitals| vitals.applied = RaftIndex(90_003));
    assert_eq!(scheduled(&seen, &[]), turn(1));
    change(&mut seen, 1, |vitals| vitals.applied = RaftIndex(90_002));
    let (member, entries) = (MemberId(1), 10_001);
    assert_eq!(
        scheduled(&seen, &[]),
        Step::Refuse(Refusal::Lagging { member, entries })
    );
}

#[test]
fn without_an_agreed_leader_nothing_is_done() {
    let mut seen = three();
    change(&mut seen, 3, |vitals| vitals.leader = MemberId(3));
    assert_eq!(scheduled(&seen, &[]), Step::Refuse(Refusal::LeaderUnclear));
    let mut seen = three();
    for id in 1..=3 {
        change(&mut seen, id, |vitals| vitals.leader = MemberId(9));
    }
    assert_eq!(scheduled(&seen, &[]), Step::Refuse(Refusal::LeaderUnclear));
}

#[test]
fn a_learner_is_left_alone_and_bothers_nobody() {
    let mut seen = three();
    seen.members.insert(0, member(7, Role::Learner));
    assert_eq!(scheduled(&seen, &[]), turn(1));
    assert_eq!(scheduled(&seen, &[1, 2, 3]), Step::Done);
    seen.members.truncate(1);
    assert_eq!(scheduled(&seen, &[]), Step::Refuse(Refusal::NoVoters));
}

#[test]
fn a_single_member_is_defragmented_on_schedule_only() {
    let mut seen = three();
    seen.members = vec![seen.members[1].clone(), member(7, Role::Learner)];
    assert_eq!(scheduled(&seen, &[]), turn(2));
    assert_eq!(over_threshold(&seen, &[]), Step::Refuse(Refusal::Alone));
    assert_eq!(scheduled(&seen, &[2]), Step::Done);
}
