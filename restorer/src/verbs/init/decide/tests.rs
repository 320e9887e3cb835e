use super::*;

const MINE: &str = "aaaa";
const OTHER: &str = "bbbb";

fn data(state: DataState) -> Data {
    let is_known = matches!(state, DataState::Sound | DataState::Removed);
    Data {
        highest_revision: is_known.then_some(100),
        cluster_id: is_known.then(|| MINE.to_owned()),
        ..Data::of(state)
    }
}

fn found(cluster_id: &str, has_leader: bool, mine: Mine) -> Cluster {
    Cluster::Found {
        cluster_id: cluster_id.into(),
        has_leader,
        members: 3,
        mine,
    }
}

const STATES: [DataState; 6] = [
    DataState::Sound,
    DataState::Removed,
    DataState::Missing,
    DataState::Corrupt,
    DataState::InUse,
    DataState::Foreign,
];

fn clusters() -> Vec<Cluster> {
    let mut all = vec![Cluster::Unreachable];
    for id in [MINE, OTHER] {
        for has_leader in [true, false] {
            for mine in [Mine::Absent, Mine::Added, Mine::Started] {
                all.push(found(id, has_leader, mine));
            }
        }
    }
    all
}

fn configurations() -> Vec<Configured> {
    let mut all = Vec::new();
    for state in [ClusterState::New, ClusterState::Existing] {
        for is_alone in [true, false] {
            for is_listed in [true, false] {
                all.push(Configured {
                    state,
                    is_alone,
                    is_listed,
                });
            }
        }
    }
    all
}

const BACKUPS: [Backup; 6] = [
    Backup::Unconfigured,
    Backup::NotAsked,
    Backup::Empty,
    Backup::Present {
        newest_revision: 100,
    },
    Backup::Present {
        newest_revision: 101,
    },
    Backup::Unreachable,
];

/// Every combination there is, with its decision.
fn everything(mut check: impl FnMut(&Data, &Cluster, Configured, &Backup, Decision)) {
    for state in STATES {
        let data = data(state);
        for cluster in clusters() {
            for configured in configurations() {
                for backup in BACKUPS {
                    let decision = decide(&data, &cluster, configured, &backup);
                    check(&data, &cluster, configured, &backup, decision);
                }
            }
        }
    }
}

fn starts_etcd(decision: Decision) -> bool {
    matches!(
        decision,
        Decision::Bootstrap | Decision::Start | Decision::Join
    )
}

#[test]
fn etcd_never_starts_empty_beside_a_backup_that_has_or_may_have_data() {
    everything(|data, cluster, configured, backup, decision| {
        if decision == Decision::Bootstrap {
            assert_eq!(data.state, DataState::Missing);
            assert_eq!(*cluster, Cluster::Unreachable, "{configured:?}");
            assert_eq!(configured.state, ClusterState::New);
            let is_free = matches!(
                backup,
                Backup::Unconfigured | Backup::Empty | Backup::NotAsked
            );
            assert!(is_free, "{backup:?}");
        }
    });
}

#[test]
fn a_member_whose_data_is_gone_never_comes_back_under_its_old_identity() {
    everything(|data, cluster, _, _, decision| {
        if let Cluster::Found {
            mine: Mine::Started,
            ..
        } = cluster
            && data.state == DataState::Missing
        {
            assert_eq!(decision, Decision::Wait(WaitCause::DataLost));
        }
    });
}

#[test]
fn only_sound_data_is_started_on() {
    everything(|data, _, _, _, decision| match decision {
        Decision::Start => assert_eq!(data.state, DataState::Sound),
        Decision::Join | Decision::Bootstrap => assert_eq!(data.state, DataState::Missing),
        _ => {}
    });
}

#[test]
fn data_is_restored_only_where_nobody_else_has_it() {
    everything(|_, cluster, configured, backup, decision| {
        if let Decision::RestoreRequired(cause) = decision {
            assert!(matches!(backup, Backup::Present { .. }), "{cause:?}");
            let is_new = cause == RestoreCause::BackupExists;
            assert!(configured.is_alone || is_new, "{cause:?} {configured:?}");
            let is_behind = cause == RestoreCause::DataBehindBackup;
            assert!(*cluster == Cluster::Unreachable || is_behind, "{cause:?}");
        }
    });
}

#[test]
fn a_store_that_does_not_answer_stops_nobody_who_has_sound_data() {
    everything(|data, cluster, _, backup, decision| {
        if data.state == DataState::Sound
            && *backup == Backup::Unreachable
            && contradiction(data, cluster).is_none()
        {
            assert_eq!(decision, Decision::Start);
        }
    });
}

#[test]
fn the_backup_is_asked_exactly_when_it_has_a_say() {
    for state in STATES {
        let data = data(state);
        for cluster in clusters() {
            for configured in configurations() {
                let decided = BACKUPS.map(|backup| decide(&data, &cluster, configured, &backup));
                let matters = decided.iter().any(|decision| *decision != decided[0]);
                let asked = needs_backup(&data, &cluster, configured);
                assert_eq!(asked, matters, "{data:?} {cluster:?} {configured:?}");
            }
        }
    }
}

#[test]
fn a_removed_member_and_one_of_another_cluster_stay_out() {
    let existing = Configured {
        state: ClusterState::Existing,
        is_alone: false,
        is_listed: true,
    };
    let on = |cluster: &Cluster| decide(&data(DataState::Sound), cluster, existing, &BACKUPS[0]);
    let removed = Decision::Refuse(RefuseCause::Removed);
    assert_eq!(on(&found(MINE, true, Mine::Absent)), removed);
    let other = Decision::Refuse(RefuseCause::OtherCluster);
    assert_eq!(on(&found(OTHER, true, Mine::Started)), other);
    // Without a leader the others may be mistaken, or be the minority.
    assert_eq!(on(&found(MINE, false, Mine::Absent)), Decision::Start);
    assert_eq!(on(&found(OTHER, false, Mine::Absent)), Decision::Start);
    let gone = data(DataState::Removed);
    assert_eq!(
        decide(&gone, &Cluster::Unreachable, existing, &BACKUPS[0]),
        removed
    );
}

#[test]
fn a_single_member_that_lost_everything_says_so_instead_of_starting_empty() {
    let alone = Configured {
        state: ClusterState::Existing,
        is_alone: true,
        is_listed: true,
    };
    let on = |backup: Backup| {
        let missing = data(DataState::Missing);
        decide(&missing, &Cluster::Unreachable, alone, &backup)
    };
    let nothing = Decision::Refuse(RefuseCause::NothingToRestore);
    assert_eq!(on(Backup::Empty), nothing);
    assert_eq!(on(Backup::Unconfigured), nothing);
    let restore = Decision::RestoreRequired(RestoreCause::DataMissing);
    assert_eq!(on(BACKUPS[3]), restore);
    assert_eq!(
        on(Backup::Unreachable),
        Decision::Wait(WaitCause::StoreUnreachable)
    );
}

#[test]
fn whoever_waits_for_others_waits_a_little_and_the_rest_is_told_at_once() {
    everything(|_, _, _, _, decision| {
        let is_final = starts_etcd(decision) || !is_worth_waiting(decision);
        let waits = matches!(decision, Decision::Wait(cause) if cause != WaitCause::DataLost);
        assert_eq!(is_final, !waits, "{decision:?}");
    });
}

#[test]
fn the_table_in_the_documentation_has_a_row_for_every_decision() {
    let table = include_str!("../decide.rs");
    let rows: Vec<&str> = table
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .collect();
    for decision in [
        "refuse",
        "restore required",
        "start",
        "wait",
        "join",
        "bootstrap",
    ] {
        let cell = format!("| {decision} |");
        assert!(rows.iter().any(|row| row.ends_with(&cell)), "{decision}");
    }
}
