//! What begins a recovery, and what never does.

use mainstay_coordination::Epoch;
use mainstay_coordination::incident::{Cause, Source, Stage};
use mainstay_crds::etcd::RecoveryMode;

use super::scene::*;
use crate::decide::recovery::{Hold, Recovery, token};
use crate::decide::tests::fixture::*;
use crate::decide::{Blocker, Step, Useless};
use crate::observe::{Finding, Ordinal, SeenLock};

#[test]
fn a_single_member_that_lost_its_data_is_restored_from_the_backup() {
    for finding in [Finding::NeedsRestore, Finding::Corrupt] {
        let incident = lost(1, &[(0, finding)]).opened();
        assert_eq!(
            (incident.cause, incident.source),
            (Cause::MemberLost, Source::Backup)
        );
        assert_eq!((incident.base, incident.size), (0, 1));
    }
}

#[test]
fn what_only_a_person_may_judge_is_never_restored() {
    // A wrong volume, a store that cannot be reached, data in use: all of them are refusals.
    let on = Blocker::MemberUnwell {
        ordinal: Ordinal(0),
    };
    let waits = Some(Step::Wait { on });
    let scene = lost(1, &[(0, Finding::Refused)]);
    assert_eq!(scene.step(), waits);
    let mut silent = lost(1, &[(0, Finding::Refused)]);
    silent.pod_mut(0).finding = None;
    assert_eq!(silent.step(), waits);
}

#[test]
fn without_a_backup_there_is_nothing_to_restore() {
    let mut scene = lost(1, &[(0, Finding::Corrupt)]);
    scene.wanted.backup = None;
    assert_eq!(scene.hold(), Hold::NothingToRestore);
    assert_eq!(
        lost(1, &[(0, Finding::Hopeless)]).hold(),
        Hold::NothingToRestore
    );
}

#[test]
fn a_cluster_that_never_was_begins_with_the_backup_of_a_former_one() {
    let mut scene = lost(
        3,
        &[
            (0, Finding::Unborn),
            (1, Finding::Unborn),
            (2, Finding::Unborn),
        ],
    );
    scene.seen.leases.clear();
    scene.set_mut().noted_size = None;
    let incident = scene.opened();
    assert_eq!(
        (incident.cause, incident.base, incident.size),
        (Cause::FormerBackup, 0, 3)
    );
}

#[test]
fn no_volume_is_written_before_each_was_looked_at() {
    let all = [
        (0, Finding::Refused),
        (1, Finding::Unborn),
        (2, Finding::Unborn),
    ];
    let mut scene = lost(3, &all);
    scene.seen.leases.clear();
    scene.set_mut().noted_size = None;
    let ordinal = Ordinal(0);
    for finding in [Some(Finding::Refused), None] {
        scene.pod_mut(0).finding = finding;
        assert_eq!(scene.hold(), Hold::Unlooked { ordinal });
    }
    // A claim that was never bound holds nothing.
    scene.seen.claims.get_mut(&ordinal).unwrap().is_bound = false;
    assert_eq!(scene.opened().cause, Cause::FormerBackup);
    // What is good there is the best copy.
    scene.seen.claims.get_mut(&ordinal).unwrap().is_bound = true;
    scene.pod_mut(0).finding = Some(Finding::Good);
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    let incident = scene.opened();
    assert_eq!((incident.base, incident.source), (0, Source::BestCopy));
}

#[test]
fn members_that_found_a_cluster_are_not_stopped_by_one_that_looks_too_late() {
    let mut scene = lost(3, &[(0, Finding::Unborn)]);
    scene.seen.leases.clear();
    scene.set_mut().noted_size = None;
    let step = scene.step();
    assert!(
        matches!(
            step,
            Some(Step::Wait {
                on: Blocker::Founding
            })
        ),
        "{step:?}"
    );
}

#[test]
fn a_lost_minority_is_no_matter_for_the_backup() {
    let scene = lost(3, &[(2, Finding::NeedsRestore)]);
    assert!(
        !matches!(scene.step(), Some(Step::Recover(_))),
        "{:?}",
        scene.step()
    );
    let scene = lost(5, &[(2, Finding::Waits), (3, Finding::Corrupt)]);
    assert!(
        !matches!(scene.step(), Some(Step::Recover(_))),
        "{:?}",
        scene.step()
    );
}

#[test]
fn a_lost_quorum_waits_for_approval_of_this_very_loss() {
    let mut scene = lost(3, &[(0, Finding::Waits), (1, Finding::Corrupt)]);
    let Hold::Approval { id } = scene.hold() else {
        panic!("{:?}", scene.hold())
    };
    scene.wanted.recovery.approved = Some("another".to_owned());
    assert!(matches!(scene.hold(), Hold::Approval { .. }));
    scene.wanted.recovery.approved = Some(id.clone());
    assert_eq!(scene.opened().id, id);
    // More is lost: that is another matter.
    let mut worse = lost(
        3,
        &[
            (0, Finding::Waits),
            (1, Finding::Corrupt),
            (2, Finding::Corrupt),
        ],
    );
    worse.wanted.recovery.approved = Some(id.clone());
    assert!(matches!(worse.hold(), Hold::Approval { .. }));
    // The same volumes, after a recovery: the approval was for that one.
    let mut last = scene.opened();
    for stage in [Stage::Closed, Stage::Failed] {
        (last.stage, last.changed) = (stage, ago(100_000));
        scene.seen.recovery.incident = Some(last.clone());
        assert!(matches!(scene.hold(), Hold::Approval { id: other } if other != id));
    }
}

#[test]
fn a_recovery_that_is_opened_again_makes_another_cluster() {
    let opened = lost(1, &[(0, Finding::NeedsRestore)]).opened();
    let (then, now) = (token(&opened.id, ago(60)), opened.token);
    assert_ne!(then, now, "by the same name, after the document was lost");
}

#[test]
fn an_approval_counts_also_when_the_controller_dies_with_the_lock_in_hand() {
    let mut scene = lost(3, &[(0, Finding::Waits), (1, Finding::Corrupt)]);
    let Hold::Approval { id } = scene.hold() else {
        panic!("{:?}", scene.hold())
    };
    scene.wanted.recovery.approved = Some(id.clone());
    scene.seen.recovery.lock = SeenLock::Ours {
        epoch: Epoch(1_800_000_000),
        renewed: ago(1),
    };
    assert_eq!(scene.opened().id, id);
}

#[test]
fn the_mode_says_who_decides() {
    let mut quorum = lost(3, &[(0, Finding::Waits), (1, Finding::Waits)]);
    let mut single = lost(1, &[(0, Finding::NeedsRestore)]);
    quorum.wanted.recovery.mode = RecoveryMode::Automatic;
    assert_eq!(quorum.opened().cause, Cause::QuorumLost);
    for scene in [&mut quorum, &mut single] {
        scene.wanted.recovery.mode = RecoveryMode::Manual;
        assert_eq!(scene.hold(), Hold::Manual);
    }
}

#[test]
fn a_quorum_that_is_away_for_a_moment_is_not_lost() {
    let mut scene = lost(3, &[(0, Finding::Waits), (1, Finding::Waits)]);
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    for since in [None, Some(ago(10))] {
        scene.known.loss_since = since;
        assert_eq!(scene.hold(), Hold::Unconfirmed);
    }
}

#[test]
fn silence_of_a_survivor_proves_nothing() {
    let mut scene = lost(
        3,
        &[(0, Finding::Waits), (1, Finding::Waits), (2, Finding::Good)],
    );
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    let ordinal = Ordinal(2);
    scene.pod_mut(2).finding = None;
    assert_eq!(scene.hold(), Hold::Verdict { ordinal });
    scene.seen.pods.remove(&ordinal);
    assert_eq!(scene.hold(), Hold::Verdict { ordinal });
}

#[test]
fn the_newest_survivor_is_the_base_and_is_compared_with_the_backup() {
    let mut scene = lost(
        5,
        &[
            (0, Finding::Waits),
            (1, Finding::Waits),
            (2, Finding::Waits),
        ],
    );
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    let crate::observe::Membership::Silent { alive, .. } = &mut scene.seen.membership else {
        panic!()
    };
    *alive = [(Ordinal(3), 10), (Ordinal(4), 20)].into();
    let incident = scene.opened();
    assert_eq!((incident.base, incident.source), (4, Source::BestCopy));
    // Without a backup the survivor alone will do.
    scene.wanted.backup = None;
    assert_eq!(scene.opened().base, 4);
}

#[test]
fn a_survivor_that_restarted_is_the_base_although_its_etcd_waits_for_a_quorum() {
    let lost = [
        (0, Finding::Waits),
        (1, Finding::Waits),
        (2, Finding::Waits),
        (3, Finding::Good),
    ];
    let mut scene = super::scene::lost(5, &lost);
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    // The fifth answers, at revision 1000.
    scene.pod_mut(3).reaches = Some(1_001);
    let incident = scene.opened();
    assert_eq!((incident.base, incident.source), (3, Source::BestCopy));
    for older in [Some(999), None] {
        scene.pod_mut(3).reaches = older;
        assert_eq!(scene.opened().base, 4);
    }
    scene.known.loss_since = Some(ago(10));
    assert_eq!(scene.hold(), Hold::Unconfirmed, "it may still answer");
}

#[test]
fn the_last_survivor_is_not_stopped_while_its_volume_would_go_with_it() {
    let mut scene = lost(3, &[(0, Finding::Waits), (1, Finding::Waits)]);
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    scene.seen.claims.get_mut(&Ordinal(2)).unwrap().is_deleting = true;
    let ordinal = Ordinal(2);
    assert_eq!(scene.hold(), Hold::Doomed { ordinal });
}

#[test]
fn without_a_survivor_the_first_volume_there_is_gets_the_backup() {
    let mut scene = lost(
        3,
        &[
            (0, Finding::Waits),
            (1, Finding::Corrupt),
            (2, Finding::Waits),
        ],
    );
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    scene.seen.claims.get_mut(&Ordinal(0)).unwrap().is_lost = true;
    let incident = scene.opened();
    assert_eq!((incident.base, incident.source), (1, Source::Backup));
}

#[test]
fn a_pod_that_was_never_a_member_is_not_counted_as_one() {
    // The only member restarts while a second pod waits to be added.
    let mut scene = lost(2, &[(1, Finding::NeedsRestore)]);
    scene.seen.leases.remove(&Ordinal(1));
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    assert!(!matches!(scene.waits(), Some(Blocker::RecoveryNeeded(_))));
    assert!(!matches!(scene.step(), Some(Step::Recover(_))));
}

#[test]
fn after_a_recovery_only_those_count_who_have_given_a_sign_of_life_since() {
    let mut scene = lost(3, &[(1, Finding::Waits), (2, Finding::Waits)]);
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    let mut over = incident(3, 0);
    over.stage = Stage::Closed;
    over.changed = ago(2);
    scene.seen.recovery.incident = Some(over);
    let step = scene.step();
    assert!(!matches!(step, Some(Step::Recover(_))), "{step:?}");
    assert!(!matches!(scene.waits(), Some(Blocker::RecoveryNeeded(_))));
}

#[test]
fn whoever_is_of_the_cluster_that_was_restored_is_a_member_whatever_its_clock_says() {
    let mut scene = lost(3, &[(0, Finding::Waits)]);
    scene.wanted.recovery.mode = RecoveryMode::Automatic;
    let mut over = incident(3, 0);
    (over.stage, over.changed) = (Stage::Closed, ago(2));
    let made = mainstay_ids::ClusterId(7);
    over.cluster = Some(made.to_string());
    scene.seen.recovery.incident = Some(over);
    for lease in scene.seen.leases.values_mut() {
        lease.renewed = Some(ago(100));
        lease.held.as_mut().unwrap().cluster = Some(made);
    }
    let step = scene.step();
    assert!(!matches!(step, Some(Step::Recover(_))), "{step:?}");
    assert!(!matches!(scene.waits(), Some(Blocker::RecoveryNeeded(_))));
}

#[test]
fn a_new_volume_needs_nobodys_word() {
    for mode in [RecoveryMode::Manual, RecoveryMode::Approve] {
        let mut scene = lost(
            3,
            &[(0, Finding::Good), (1, Finding::Good), (2, Finding::Good)],
        );
        scene.wanted.recovery.mode = mode;
        for claim in scene.seen.claims.values_mut() {
            claim.is_lost = true;
        }
        let step = scene.step();
        assert!(matches!(step, Some(Step::DiscardClaim { .. })), "{step:?}");
    }
}

#[test]
fn a_claim_without_a_volume_is_given_up_since_it_holds_nothing() {
    let mut scene = lost(1, &[(0, Finding::Good)]);
    scene.seen.claims.get_mut(&Ordinal(0)).unwrap().is_lost = true;
    assert_eq!(
        scene.step(),
        Some(Step::DiscardClaim {
            ordinal: Ordinal(0),
            uid: "claim-0".to_owned(),
            pod_uid: Some("pod-0-old".to_owned()),
            because: Useless::VolumeGone,
        })
    );
    scene.seen.claims.clear();
    scene = scene.finding(0, Finding::NeedsRestore);
    let ordinal = Ordinal(0);
    assert_eq!(scene.hold(), Hold::Claim { ordinal });
}

#[test]
fn nothing_begins_while_somebody_else_has_the_lock() {
    let mut scene = lost(1, &[(0, Finding::NeedsRestore)]);
    let others = |expires| SeenLock::Others {
        holder: "copy-1".to_owned(),
        purpose: mainstay_coordination::Purpose::Copy,
        epoch: Epoch(4),
        expires,
    };
    scene.seen.recovery.lock = others(noon() + jiff::SignedDuration::from_secs(5));
    let holder = "copy-1".to_owned();
    assert_eq!(scene.hold(), Hold::Locked { holder });
    scene.seen.recovery.lock = others(ago(5));
    assert_eq!(scene.opened().base, 0, "it may have expired: that is tried");
}

#[test]
fn a_document_nobody_can_read_stops_a_recovery_and_nothing_else() {
    let mut scene = lost(1, &[(0, Finding::NeedsRestore)]);
    scene.seen.recovery.unreadable = Some("no JSON".to_owned());
    let why = "no JSON".to_owned();
    assert_eq!(scene.hold(), Hold::Unreadable { why });
    let mut whole = Scene::whole(3);
    whole.seen.recovery.unreadable = Some("no JSON".to_owned());
    assert_eq!(whole.step(), None);
}

#[test]
fn a_lock_that_is_not_needed_after_all_is_given_back() {
    let mut scene = Scene::whole(3);
    scene.seen.recovery.lock = SeenLock::Ours {
        epoch: Epoch(1),
        renewed: ago(1),
    };
    assert_eq!(scene.recovery(), Recovery::Release);
}

#[test]
fn a_cluster_that_sleeps_or_answers_has_lost_nothing() {
    let mut asleep = lost(1, &[(0, Finding::NeedsRestore)]).replicas(0);
    assert!(!matches!(asleep.step(), Some(Step::Recover(_))));
    asleep.wanted.requests.suspend = true;
    assert_eq!(asleep.step(), None);
    let answers = Scene::whole(3).down(1).finding(1, Finding::NeedsRestore);
    assert!(!matches!(answers.step(), Some(Step::Recover(_))));
}

#[test]
fn a_recovery_that_was_given_up_makes_nobody_a_member() {
    let scene = |stage| {
        let mut scene = lost(3, &[(1, Finding::NeedsRestore), (2, Finding::Corrupt)]);
        for lease in scene.seen.leases.values_mut() {
            lease.renewed = Some(ago(100));
        }
        let mut last = incident(3, 0);
        (last.stage, last.changed) = (stage, ago(90));
        scene.seen.recovery.incident = Some(last);
        scene.wanted.recovery.mode = RecoveryMode::Automatic;
        scene
    };
    assert_eq!(scene(Stage::Failed).opened().cause, Cause::QuorumLost);
    let step = scene(Stage::Closed).step();
    assert!(
        !matches!(step, Some(Step::Recover(_))),
        "the only member is well: {step:?}"
    );
}
