//! Database, log and snapshot that do not fit together.

use mainstay_datadir::{Depth, FaultKind, Membership, WarningKind, write_raft_files};
use mainstay_ids::MemberId;
use mainstay_wal::{ConfChangeKind, ConfState, Encoder, Identity, SegmentName, SnapshotMark};

use crate::support::{
    Content, Dir, Item, LAST, PUT_REQUEST, SNAPSHOT, TERM, change, entry, identity, mark, me,
    members, snapshot, state,
};

fn item(id: MemberId) -> Item {
    let json = format!("{{\"id\":{},\"peerURLs\":[\"http://x:1\"]}}", id.0);
    (id.to_string().into_bytes(), json.into_bytes())
}

/// Items in the order of their keys.
fn items(ids: &[MemberId]) -> Vec<Item> {
    let mut items: Vec<Item> = ids.iter().copied().map(item).collect();
    items.sort();
    items
}

fn everyone() -> Vec<MemberId> {
    members().members().iter().map(|member| member.id).collect()
}

/// A log of one segment whose entry 10 changes the membership.
fn log_with_change(
    who: Identity,
    kind: ConfChangeKind,
    node: MemberId,
) -> [(SegmentName, Vec<u8>); 1] {
    let mut segment = Encoder::begin(Vec::new(), 0, who).unwrap();
    segment.snapshot(&SnapshotMark::START).unwrap();
    for (index, member) in (1..).zip(everyone()) {
        segment
            .entry(&change(index, ConfChangeKind::AddNode, member))
            .unwrap();
    }
    for index in 4..=LAST {
        let put = entry(index, TERM, PUT_REQUEST);
        let is_change = index == 10;
        let entry = if is_change {
            change(index, kind, node)
        } else {
            put
        };
        segment.entry(&entry).unwrap();
    }
    segment.state(&state(TERM, LAST)).unwrap();
    let conf_state = Some(members().conf_state());
    segment.snapshot(&mark(SNAPSHOT, conf_state)).unwrap();
    [(SegmentName::FIRST, segment.into_inner())]
}

#[test]
fn a_database_behind_the_snapshot_keeps_etcd_from_starting() {
    for index in [None, Some(1), Some(SNAPSHOT - 1)] {
        let content = Content {
            consistent_index: index,
            ..Content::sound()
        };
        let dir = Dir::of(&content);
        let report = dir.verify(Depth::Sanity);
        assert_eq!(report.faults[0].what, FaultKind::IndexBehindSnapshot);
        let report = dir.faults(&[FaultKind::IndexBehindSnapshot]);
        let place = format!("consistent index {}", index.unwrap_or(0));
        assert_eq!(report.faults[0].place, place);
    }
}

#[test]
fn a_database_ahead_of_the_log_would_skip_writes() {
    let content = Content {
        consistent_index: Some(LAST + 1),
        ..Content::sound()
    };
    let dir = Dir::of(&content);
    dir.faults(&[FaultKind::IndexBeyondLog]);
    let report = dir.verify(Depth::Sanity);
    assert_eq!(report.faults[0].what, FaultKind::IndexBeyondLog);
}

#[test]
fn a_database_that_trails_its_log_is_what_a_kill_leaves() {
    for index in SNAPSHOT..=LAST {
        let content = Content {
            consistent_index: Some(index),
            ..Content::sound()
        };
        let facts = Dir::of(&content).warnings(&[]).facts.unwrap();
        assert_eq!(facts.possible_writes_in_wal, Some(LAST - index));
    }
}

#[test]
fn a_database_of_another_term_is_from_another_history() {
    let content = |term, cluster_version| Content {
        term: Some(term),
        cluster_version,
        ..Content::sound()
    };
    for version in [None, Some("3.5.0"), Some("3.6.0")] {
        let dir = Dir::of(&content(TERM + 1, version));
        let sentence = dir.sentence(FaultKind::TermDiffers);
        assert!(
            sentence.contains("term 3, the log has term 2"),
            "{sentence}"
        );
    }
    Dir::of(&content(TERM - 1, Some("3.6.0"))).faults(&[FaultKind::TermDiffers]);
    // A 3.4 does not keep up the term that a newer server or tool has written.
    for (term, version) in [
        (TERM - 1, None),
        (TERM - 1, Some("3.4.0")),
        (TERM + 1, Some("3.4.0")),
    ] {
        Dir::of(&content(term, version)).warnings(&[WarningKind::TermStale]);
    }
    let never = Content {
        term: None,
        ..Content::sound()
    };
    Dir::of(&never).warnings(&[]);
}

/// The restore of 3.4 leaves the term of the former life where it is.
#[test]
fn a_directory_restored_by_an_older_tool_may_have_the_term_of_its_former_life() {
    let membership = members();
    let dir = Dir::bare();
    write_raft_files(&dir.path().join("member"), &membership, me()).unwrap();
    let content = Content {
        consistent_index: Some(3),
        term: Some(7),
        ..Content::sound()
    };
    content.write(&dir.db());
    dir.warnings(&[WarningKind::TermStale]);
}

#[test]
fn a_log_of_someone_who_is_no_member_is_foreign() {
    let stranger = MemberId(0xbad);
    let who = Identity {
        node: stranger,
        ..identity()
    };
    let dir = Dir::sound();
    dir.write_log(&log_with_change(who, ConfChangeKind::UpdateNode, me()));
    let report = dir.faults(&[FaultKind::NotAMember]);
    assert_eq!(report.faults[0].place, "member bad");
    // Added behind the snapshot, it is one; the database has heard of it, or not yet.
    dir.write_log(&log_with_change(who, ConfChangeKind::AddLearner, stranger));
    let mut content = Content {
        members: items(&[everyone(), vec![stranger]].concat()),
        ..Content::sound()
    };
    content.write(&dir.db());
    dir.warnings(&[]);
    content.members = items(&everyone());
    content.consistent_index = Some(9);
    content.write(&dir.db());
    dir.warnings(&[]);
}

#[test]
fn a_member_that_was_removed_is_told_so() {
    let dir = Dir::sound();
    dir.write_log(&log_with_change(
        identity(),
        ConfChangeKind::RemoveNode,
        me(),
    ));
    let content = Content {
        members: items(&everyone()[1..]),
        removed: vec![(me().to_string().into_bytes(), b"removed".to_vec())],
        storage_version: Some("3.6.0"),
        ..Content::sound()
    };
    content.write(&dir.db());
    dir.warnings(&[WarningKind::MemberRemoved]);
}

#[test]
fn members_a_restore_by_an_older_tool_left_in_the_database_are_worth_a_warning() {
    let strangers = [MemberId(0x1), MemberId(0x2)];
    for members in [
        items(&strangers),
        items(&[everyone(), strangers.to_vec()].concat()),
        items(&everyone()[..2]),
        Vec::new(),
    ] {
        let content = Content {
            members,
            ..Content::sound()
        };
        Dir::of(&content).warnings(&[WarningKind::MembersDiffer]);
    }
}

/// From 3.6 on the membership comes from the database.
#[test]
fn a_3_6_database_that_does_not_know_its_own_member_is_foreign() {
    let content = |members| Content {
        members,
        storage_version: Some("3.6.0"),
        ..Content::sound()
    };
    for members in [items(&everyone()[1..]), Vec::new()] {
        Dir::of(&content(members)).faults(&[FaultKind::NotAMember]);
    }
    Dir::of(&content(items(&everyone()))).warnings(&[]);
}

#[test]
fn snapshot_and_log_must_name_the_same_configuration() {
    let dir = Dir::sound();
    let mut other = snapshot(SNAPSHOT, &members());
    other.conf_state.voters.reverse();
    dir.write_snapshot(&other);
    dir.warnings(&[]);

    let two = Membership::new(&"a=http://10.0.0.1:2380".parse().unwrap(), "sound").unwrap();
    dir.write_snapshot(&snapshot(SNAPSHOT, &two));
    let report = dir.verify(Depth::Full);
    assert_eq!(report.faults[0].what, FaultKind::ConfStateDiffers);
    let sentence = report.faults[0].to_string();
    assert!(sentence.contains("the log says"), "{sentence}");
}

#[test]
fn the_list_and_the_configuration_of_a_snapshot_must_agree() {
    let dir = Dir::sound();
    let mut snapshot = snapshot(SNAPSHOT, &members());
    snapshot.conf_state = ConfState::of_voters(everyone()[..2].to_vec());
    dir.write_snapshot(&snapshot);
    dir.write_log(&Dir::one_segment(|segment| {
        for (index, member) in (1..).zip(everyone()) {
            segment
                .entry(&change(index, ConfChangeKind::AddNode, member))
                .unwrap();
        }
        for index in 4..=LAST {
            segment.entry(&entry(index, TERM, PUT_REQUEST)).unwrap();
        }
        segment.state(&state(TERM, LAST)).unwrap();
        segment.snapshot(&mark(SNAPSHOT, None)).unwrap();
    }));
    let report = dir.verify(Depth::Full);
    let kinds: Vec<_> = report.faults.iter().map(|fault| fault.what).collect();
    assert_eq!(kinds, [FaultKind::ConfStateDiffers]);
    assert!(
        report.faults[0].reason.contains("its configuration"),
        "{report:?}"
    );
}
