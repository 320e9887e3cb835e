//! How database, log and snapshot must fit together.

use std::collections::BTreeSet;
use std::path::Path;

use mainstay_ids::{MemberId, RaftIndex, Term};
use mainstay_wal::v2store::V2Store;
use mainstay_wal::{ConfState, SnapFile};

use super::database::OpenedDatabase;
use super::findings::Findings;
use super::layout::DirLayout;
use super::raft::RaftState;
use super::report::{FaultKind, WarningKind, format_error_chain};
use super::snapshot::collect_members;

/// Snapshot index <= consistent index <= last index of the log, and the same term at the consistent index.
pub(super) fn check_indexes(layout: &DirLayout, db: &OpenedDatabase, raft: &RaftState, findings: &mut Findings) {
    let applied = db.facts.consistent_index.unwrap_or_default();
    let (snapshot, last) = (raft.snapshot_index(), raft.summary.last_index);
    let place = format!("consistent index {applied}");
    if applied < snapshot {
        findings.add_fault(
            FaultKind::IndexBehindSnapshot,
            &db.path,
            &place,
            format!(
                "the raft snapshot covers entry {snapshot}, and there is no {:016x}.snap.db",
                snapshot.0
            ),
        );
    }
    if applied > last {
        findings.add_fault(
            FaultKind::IndexBeyondLog,
            &db.path,
            &place,
            format!(
                "the log in {} ends with entry {last}: writes up to {applied} would be skipped",
                layout.wal.display()
            ),
        );
    }
    let logged = raft.summary.term_at(applied);
    if let (1.., Some(stored), Some(logged)) = (applied.0, db.facts.term, logged) {
        check_term(db, raft, stored, logged, findings);
    }
}

/// The term of a database that only knows newer servers and tools is that of its consistent index.
fn check_term(db: &OpenedDatabase, raft: &RaftState, stored: Term, logged: Term, findings: &mut Findings) {
    if stored == logged {
        return;
    }
    let applied = db.facts.consistent_index.unwrap_or_default();
    let place = format!("consistent index {applied}");
    let reason = format!("the database says term {stored}, the log has term {logged} there");
    if is_term_maintained(db, raft, stored < logged) {
        findings.add_fault(FaultKind::TermDiffers, &db.path, place, reason);
    } else {
        findings.add_warning(WarningKind::TermStale, &db.path, place, reason);
    }
}

/// Servers and tools of 3.4 move the consistent index and leave the term alone. They can have been at work where the
/// cluster version is not above 3.4, since no server joins a cluster whose version is above its own; where none is
/// known yet and the term trails; and in a directory that was restored and never started, which still has the
/// cluster version of its former life.
fn is_term_maintained(db: &OpenedDatabase, raft: &RaftState, trails: bool) -> bool {
    let knows_3_4 = match db.small_buckets.cluster_version.as_deref() {
        Some(version) => is_at_most_3_4(version),
        None => trails,
    };
    !knows_3_4 && !is_fresh_restore(raft)
}

fn is_at_most_3_4(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) <= (3, 4),
        _ => true,
    }
}

/// A restore writes one entry per member and a snapshot that covers them, all in term 1.
fn is_fresh_restore(raft: &RaftState) -> bool {
    let Some((_, snapshot)) = &raft.snapshot else {
        return false;
    };
    let members = snapshot.conf_state.voters.len() as u64;
    (snapshot.term, snapshot.index) == (Term(1), RaftIndex(members))
        && raft.summary.last_index == snapshot.index
}

/// Whether the member belongs to the cluster, and whether everyone agrees on who does.
pub(super) fn check_membership(layout: &DirLayout, db: &OpenedDatabase, raft: &RaftState, findings: &mut Findings) {
    let mut removed = raft.unapplied.removed_members.clone();
    removed.extend(&db.small_buckets.removed_members);
    if let Some((path, snapshot)) = &raft.snapshot {
        if let Some(store) = check_snapshot_content(path, snapshot, findings) {
            removed.extend(store.removed);
        }
        check_snapshot_mark(path, snapshot, raft, findings);
    }
    check_own_membership(layout, raft, &removed, findings);
    check_members_bucket(db, raft, findings);
}

/// The tree inside the snapshot, which must agree with the configuration beside it. 3.7 writes none.
fn check_snapshot_content(path: &Path, snapshot: &SnapFile, findings: &mut Findings) -> Option<V2Store> {
    if snapshot.data.is_empty() {
        return None;
    }
    let store = match V2Store::parse(&snapshot.data) {
        Ok(store) => store,
        Err(error) => {
            findings.add_fault(FaultKind::SnapshotContent, path, "", format_error_chain(&error));
            return None;
        }
    };
    if store.user_keys > 0 {
        let reason = format!("{} keys of the v2 api", store.user_keys);
        findings.add_warning(WarningKind::V2Keys, path, "", reason);
    }
    let listed: BTreeSet<MemberId> = store.members.iter().map(|member| member.id).collect();
    let configured = collect_members(&snapshot.conf_state);
    if !listed.is_empty() && listed != configured {
        let reason = format!(
            "the snapshot lists the members {}, its configuration {}",
            join_member_ids(&listed),
            join_member_ids(&configured)
        );
        let place = format!("index {}", snapshot.index);
        findings.add_fault(FaultKind::ConfStateDiffers, path, place, reason);
    }
    Some(store)
}

/// The log's mark of the snapshot names the same configuration. 3.4 writes none.
fn check_snapshot_mark(path: &Path, snapshot: &SnapFile, raft: &RaftState, findings: &mut Findings) {
    let place = (snapshot.term, snapshot.index);
    let marked = raft
        .summary
        .snapshots
        .iter()
        .filter(|mark| (mark.term, mark.index) == place)
        .filter_map(|mark| mark.conf_state.as_ref());
    for state in marked {
        if to_sorted(state) != to_sorted(&snapshot.conf_state) {
            let reason = format!(
                "the snapshot is of the members {}, the log says {} there",
                join_member_ids(&collect_members(&snapshot.conf_state)),
                join_member_ids(&collect_members(state))
            );
            let place = format!("index {}", snapshot.index);
            findings.add_fault(FaultKind::ConfStateDiffers, path, place, reason);
        }
    }
}

/// A configuration in which the order of members does not count.
fn to_sorted(state: &ConfState) -> ConfState {
    let mut state = state.clone();
    for members in [
        &mut state.voters,
        &mut state.learners,
        &mut state.voters_outgoing,
        &mut state.learners_next,
    ] {
        members.sort_unstable();
    }
    state
}

/// The member whose log it is must be known to raft. One that is just joining has not seen the entry that adds it.
fn check_own_membership(
    layout: &DirLayout,
    raft: &RaftState,
    removed: &BTreeSet<MemberId>,
    findings: &mut Findings,
) {
    let me = raft.summary.identity.node;
    let known = &raft.unapplied.members_at_log_end;
    let place = format!("member {me}");
    if known.contains(&me) {
        return;
    }
    if removed.contains(&me) {
        let reason = "the member was removed from the cluster".to_owned();
        findings.add_warning(WarningKind::MemberRemoved, &layout.wal, place, reason);
    } else if raft.snapshot.is_some() {
        let reason = format!("the log is of a member that is not one of {}", join_member_ids(known));
        findings.add_fault(FaultKind::NotAMember, &layout.wal, place, reason);
    } else if raft.summary.last_index > RaftIndex(0) {
        let reason = "the entry that adds the member is not in its log yet".to_owned();
        findings.add_warning(WarningKind::NotYetAMember, &layout.wal, place, reason);
    }
}

/// The `members` bucket follows the log. Restores by 3.4 leave old members in it, and up to 3.5 nobody reads it; from
/// 3.6 on the membership comes from there.
fn check_members_bucket(db: &OpenedDatabase, raft: &RaftState, findings: &mut Findings) {
    let (expected, found) = (&raft.unapplied.members_at_consistent_index, db.small_buckets.member_ids());
    if db.facts.consistent_index.is_none() || *expected == found {
        return;
    }
    let reason = format!(
        "the bucket lists the members {}, raft knows {} there",
        join_member_ids(&found),
        join_member_ids(expected)
    );
    let me = raft.summary.identity.node;
    let place = "bucket members";
    let is_authoritative = db.facts.storage_version.is_some();
    if is_authoritative && expected.contains(&me) && !found.contains(&me) {
        findings.add_fault(FaultKind::NotAMember, &db.path, place, reason);
    } else {
        findings.add_warning(WarningKind::MembersDiffer, &db.path, place, reason);
    }
}

/// Members as a list for people.
fn join_member_ids(members: &BTreeSet<MemberId>) -> String {
    if members.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<String> = members.iter().map(MemberId::to_string).collect();
    names.join(", ")
}
