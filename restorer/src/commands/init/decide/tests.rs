use super::*;

const OWN_CLUSTER: &str = "aaaa";
const OTHER_CLUSTER: &str = "bbbb";

fn data(state: DataState) -> DataDirSummary {
    let is_known = matches!(state, DataState::Sound | DataState::Removed);
    DataDirSummary {
        highest_revision: is_known.then_some(100),
        cluster_id: is_known.then(|| OWN_CLUSTER.to_owned()),
        ..DataDirSummary::from_state(state)
    }
}

fn found_cluster(cluster_id: &str, has_leader: bool, mine: MemberRegistration) -> ClusterSummary {
    ClusterSummary::Found {
        cluster_id: cluster_id.into(),
        has_leader,
        members: 3,
        mine,
    }
}

const DATA_STATES: [DataState; 6] = [
    DataState::Sound,
    DataState::Removed,
    DataState::Missing,
    DataState::Corrupt,
    DataState::InUse,
    DataState::Foreign,
];

fn clusters() -> Vec<ClusterSummary> {
    let mut all = vec![ClusterSummary::Unreachable];
    for id in [OWN_CLUSTER, OTHER_CLUSTER] {
        for has_leader in [true, false] {
            for mine in [
                MemberRegistration::Absent,
                MemberRegistration::Added,
                MemberRegistration::Started,
            ] {
                all.push(found_cluster(id, has_leader, mine));
            }
        }
    }
    all
}

fn configurations() -> Vec<ConfiguredCluster> {
    let mut all = Vec::new();
    for state in [InitialClusterState::New, InitialClusterState::Existing] {
        for is_single_member in [true, false] {
            for is_listed in [true, false] {
                all.push(ConfiguredCluster {
                    state,
                    is_single_member,
                    is_listed,
                });
            }
        }
    }
    all
}

const BACKUPS: [BackupSummary; 6] = [
    BackupSummary::Unconfigured,
    BackupSummary::NotAsked,
    BackupSummary::Empty,
    BackupSummary::Present {
        newest_revision: 100,
    },
    BackupSummary::Present {
        newest_revision: 101,
    },
    BackupSummary::Unreachable,
];

/// Calls `check` for every combination of inputs, with its decision.
fn for_each_combination(
    mut check: impl FnMut(
        &DataDirSummary,
        &ClusterSummary,
        ConfiguredCluster,
        &BackupSummary,
        InitDecision,
    ),
) {
    for state in DATA_STATES {
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

fn is_start(decision: InitDecision) -> bool {
    matches!(
        decision,
        InitDecision::Bootstrap | InitDecision::Start | InitDecision::Join
    )
}

#[test]
fn etcd_never_starts_empty_when_the_backup_may_have_data() {
    for_each_combination(|data, cluster, configured, backup, decision| {
        if decision == InitDecision::Bootstrap {
            assert_eq!(data.state, DataState::Missing);
            assert_eq!(*cluster, ClusterSummary::Unreachable, "{configured:?}");
            assert_eq!(configured.state, InitialClusterState::New);
            let is_free = matches!(
                backup,
                BackupSummary::Unconfigured | BackupSummary::Empty | BackupSummary::NotAsked
            );
            assert!(is_free, "{backup:?}");
        }
    });
}

#[test]
fn member_with_lost_data_never_starts_with_its_old_member_id() {
    for_each_combination(|data, cluster, _, _, decision| {
        if let ClusterSummary::Found {
            mine: MemberRegistration::Started,
            ..
        } = cluster
            && data.state == DataState::Missing
        {
            assert_eq!(decision, InitDecision::Wait(WaitCause::DataLost));
        }
    });
}

#[test]
fn etcd_starts_only_on_valid_data() {
    for_each_combination(|data, _, _, _, decision| match decision {
        InitDecision::Start => assert_eq!(data.state, DataState::Sound),
        InitDecision::Join | InitDecision::Bootstrap => assert_eq!(data.state, DataState::Missing),
        _ => {}
    });
}

#[test]
fn data_is_restored_only_when_no_other_member_has_it() {
    for_each_combination(|_, cluster, configured, backup, decision| {
        if let InitDecision::RestoreRequired(cause) = decision {
            assert!(matches!(backup, BackupSummary::Present { .. }), "{cause:?}");
            let is_new = cause == RestoreCause::BackupExists;
            assert!(
                configured.is_single_member || is_new,
                "{cause:?} {configured:?}"
            );
            let is_behind = cause == RestoreCause::DataBehindBackup;
            assert!(
                *cluster == ClusterSummary::Unreachable || is_behind,
                "{cause:?}"
            );
        }
    });
}

#[test]
fn unreachable_store_does_not_stop_a_member_with_valid_data() {
    for_each_combination(|data, cluster, _, backup, decision| {
        if data.state == DataState::Sound
            && *backup == BackupSummary::Unreachable
            && find_refuse_cause(data, cluster).is_none()
        {
            assert_eq!(decision, InitDecision::Start);
        }
    });
}

#[test]
fn backup_is_read_exactly_when_it_affects_the_decision() {
    for state in DATA_STATES {
        let data = data(state);
        for cluster in clusters() {
            for configured in configurations() {
                // Valid data that is older by name is compared with the backup, and each result decides.
                let relations = [
                    None,
                    Some(BackupRelation::Behind),
                    Some(BackupRelation::Diverged),
                ];
                let decided = relations.map(|history| {
                    let compared = DataDirSummary {
                        history,
                        ..data.clone()
                    };
                    BACKUPS.map(|backup| decide(&compared, &cluster, configured, &backup))
                });
                let first = decided[0][0];
                let matters = decided.iter().flatten().any(|decision| *decision != first);
                let asked = needs_backup(&data, &cluster, configured);
                assert_eq!(asked, matters, "{data:?} {cluster:?} {configured:?}");
            }
        }
    }
}

#[test]
fn removed_member_and_member_of_another_cluster_are_refused() {
    let existing = ConfiguredCluster {
        state: InitialClusterState::Existing,
        is_single_member: false,
        is_listed: true,
    };
    let on =
        |cluster: &ClusterSummary| decide(&data(DataState::Sound), cluster, existing, &BACKUPS[0]);
    let removed = InitDecision::Refuse(RefuseCause::Removed);
    assert_eq!(
        on(&found_cluster(
            OWN_CLUSTER,
            true,
            MemberRegistration::Absent
        )),
        removed
    );
    let other = InitDecision::Refuse(RefuseCause::OtherCluster);
    assert_eq!(
        on(&found_cluster(
            OTHER_CLUSTER,
            true,
            MemberRegistration::Started
        )),
        other
    );
    // Without a leader the others may have a stale member list, or be the minority.
    assert_eq!(
        on(&found_cluster(
            OWN_CLUSTER,
            false,
            MemberRegistration::Absent
        )),
        InitDecision::Start
    );
    assert_eq!(
        on(&found_cluster(
            OTHER_CLUSTER,
            false,
            MemberRegistration::Absent
        )),
        InitDecision::Start
    );
    let gone = data(DataState::Removed);
    assert_eq!(
        decide(&gone, &ClusterSummary::Unreachable, existing, &BACKUPS[0]),
        removed
    );
}

#[test]
fn single_member_without_data_and_backup_does_not_start_empty() {
    let alone = ConfiguredCluster {
        state: InitialClusterState::Existing,
        is_single_member: true,
        is_listed: true,
    };
    let on = |backup: BackupSummary| {
        let missing = data(DataState::Missing);
        decide(&missing, &ClusterSummary::Unreachable, alone, &backup)
    };
    let nothing = InitDecision::Refuse(RefuseCause::NothingToRestore);
    assert_eq!(on(BackupSummary::Empty), nothing);
    assert_eq!(on(BackupSummary::Unconfigured), nothing);
    let restore = InitDecision::RestoreRequired(RestoreCause::DataMissing);
    assert_eq!(on(BACKUPS[3]), restore);
    assert_eq!(
        on(BackupSummary::Unreachable),
        InitDecision::Wait(WaitCause::StoreUnreachable)
    );
}

#[test]
fn init_polls_for_every_wait_cause_except_lost_data() {
    for_each_combination(|_, _, _, _, decision| {
        let is_final = is_start(decision) || !should_wait(decision);
        let waits = matches!(decision, InitDecision::Wait(cause) if cause != WaitCause::DataLost);
        assert_eq!(is_final, !waits, "{decision:?}");
    });
}

#[test]
fn documentation_table_has_a_row_for_every_decision() {
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

#[test]
fn valid_data_is_replaced_only_by_a_backup_that_continues_it() {
    let configured = ConfiguredCluster {
        state: InitialClusterState::Existing,
        is_single_member: true,
        is_listed: true,
    };
    let newer = BackupSummary::Present {
        newest_revision: 101,
    };
    let decide_with = |history| {
        let data = DataDirSummary {
            history,
            ..data(DataState::Sound)
        };
        decide(&data, &ClusterSummary::Unreachable, configured, &newer)
    };
    let behind = InitDecision::RestoreRequired(RestoreCause::DataBehindBackup);
    assert_eq!(decide_with(Some(BackupRelation::Behind)), behind);
    let refused = [
        (BackupRelation::Diverged, RefuseCause::HistoryDiverged),
        (BackupRelation::Unknown, RefuseCause::HistoryUnknown),
    ];
    for (relation, cause) in refused {
        assert_eq!(decide_with(Some(relation)), InitDecision::Refuse(cause));
    }
    // Nothing readable is newer, or the store failed during the comparison.
    for relation in [
        None,
        Some(BackupRelation::Equal),
        Some(BackupRelation::Ahead),
    ] {
        assert_eq!(decide_with(relation), InitDecision::Start, "{relation:?}");
    }
}
