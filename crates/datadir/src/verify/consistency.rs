//! Consistency between database, WAL and raft snapshot.

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

/// Checks snapshot index <= consistent index <= last WAL index, and equal terms at the consistent index.
pub(super) fn check_indexes(
    layout: &DirLayout,
    db: &OpenedDatabase,
    raft: &RaftState,
    findings: &mut Findings,
) {
    let applied = db.facts.consistent_index.unwrap_or_default();
    let (snapshot, last) = (raft.snapshot_index(), raft.summary.last_index);
    let place = format!("consistent index {applied}");
    // etcd panics at boot: "failed to find database snapshot file".
    if applied < snapshot {
        findings.add_fault(
            FaultKind::IndexBehindSnapshot,
            &db.path,
            &place,
            format!(
                "below raft snapshot index {snapshot}, and {:016x}.snap.db does not exist",
                snapshot.0
            ),
        );
    }
    // etcd skips every new entry up to this index, because it counts as already applied.
    if applied > last {
        findings.add_fault(
            FaultKind::IndexBeyondLog,
            &db.path,
            &place,
            format!(
                "WAL in {} ends with entry {last}: etcd would skip new writes up to {applied}",
                layout.wal.display()
            ),
        );
    }
    let logged = raft.summary.term_at(applied);
    if let (1.., Some(stored), Some(logged)) = (applied.0, db.facts.term, logged) {
        check_term(db, raft, stored, logged, findings);
    }
}

/// Compares the term in the database with that of the WAL; a mismatch is damage only where etcd maintains it.
fn check_term(
    db: &OpenedDatabase,
    raft: &RaftState,
    stored: Term,
    logged: Term,
    findings: &mut Findings,
) {
    if stored == logged {
        return;
    }
    let applied = db.facts.consistent_index.unwrap_or_default();
    let place = format!("consistent index {applied}");
    let reason = format!("database records term {stored}, WAL has term {logged}");
    // Where etcd keeps the term current, another term means a database of another history.
    if is_term_maintained(db, raft, stored < logged) {
        findings.add_fault(FaultKind::TermDiffers, &db.path, place, reason);
    } else {
        findings.add_warning(WarningKind::TermStale, &db.path, place, reason);
    }
}

/// Servers and tools of 3.4 update the consistent index but not the term. They may have written the directory
/// if the cluster version is at most 3.4, because no server joins a cluster with a higher version; if it is
/// not set yet and the term lags; or if the directory was restored and never started, because it then has the
/// cluster version of the old cluster.
fn is_term_maintained(db: &OpenedDatabase, raft: &RaftState, lags: bool) -> bool {
    let knows_3_4 = match db.small_buckets.cluster_version.as_deref() {
        Some(version) => is_at_most_3_4(version),
        None => lags,
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

/// Whether the directory was restored and never started: one entry per member, all in term 1.
fn is_fresh_restore(raft: &RaftState) -> bool {
    let Some((_, snapshot)) = &raft.snapshot else {
        return false;
    };
    let members = snapshot.conf_state.voters.len() as u64;
    (snapshot.term, snapshot.index) == (Term(1), RaftIndex(members))
        && raft.summary.last_index == snapshot.index
}

/// Checks that the member belongs to the cluster, and that all records of the membership match.
pub(super) fn check_membership(
    layout: &DirLayout,
    db: &OpenedDatabase,
    raft: &RaftState,
    findings: &mut Findings,
) {
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

/// Checks that the v2 store in the snapshot matches its raft configuration. etcd 3.7 writes no v2 store.
fn check_snapshot_content(
    path: &Path,
    snapshot: &SnapFile,
    findings: &mut Findings,
) -> Option<V2Store> {
    // etcd 3.7 writes snapshots without v2 store.
    if snapshot.data.is_empty() {
        return None;
    }
    let store = match V2Store::parse(&snapshot.data) {
        Ok(store) => store,
        Err(error) => {
            findings.add_fault(
                FaultKind::SnapshotContent,
                path,
                "",
                format_error_chain(&error),
            );
            return None;
        }
    };
    if store.user_keys > 0 {
        let reason = format!("{} keys of the v2 API", store.user_keys);
        findings.add_warning(WarningKind::V2Keys, path, "", reason);
    }
    let listed: BTreeSet<MemberId> = store.members.iter().map(|member| member.id).collect();
    let configured = collect_members(&snapshot.conf_state);
    // etcd up to 3.5 takes the members from the v2 store and the voters from the configuration.
    if !listed.is_empty() && listed != configured {
        let reason = format!(
            "v2 store of the snapshot lists members {}, its raft configuration {}",
            join_member_ids(&listed),
            join_member_ids(&configured)
        );
        let place = format!("index {}", snapshot.index);
        findings.add_fault(FaultKind::ConfStateDiffers, path, place, reason);
    }
    Some(store)
}

/// Checks that the WAL's snapshot record has the same configuration. etcd 3.4 records none.
fn check_snapshot_mark(
    path: &Path,
    snapshot: &SnapFile,
    raft: &RaftState,
    findings: &mut Findings,
) {
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
                "snapshot has members {}, its WAL record {}",
                join_member_ids(&collect_members(&snapshot.conf_state)),
                join_member_ids(&collect_members(state))
            );
            let place = format!("index {}", snapshot.index);
            findings.add_fault(FaultKind::ConfStateDiffers, path, place, reason);
        }
    }
}

/// The configuration with sorted members, for comparison.
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

/// Checks that the owner of the WAL is a member. A joining member has not yet received the entry that adds it.
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
    // Not damage: the cluster rejects the member, and etcd exits.
    if removed.contains(&me) {
        let reason = "member was removed from the cluster".to_owned();
        findings.add_warning(WarningKind::MemberRemoved, &layout.wal, place, reason);
    } else if raft.snapshot.is_some() {
        let reason = format!(
            "owner of the WAL is not one of the members {}",
            join_member_ids(known)
        );
        findings.add_fault(FaultKind::NotAMember, &layout.wal, place, reason);
    } else if raft.summary.last_index > RaftIndex(0) {
        let reason = "WAL does not yet contain the entry that adds the member".to_owned();
        findings.add_warning(WarningKind::NotYetAMember, &layout.wal, place, reason);
    }
}

/// Checks the `members` bucket against raft. Restores by 3.4 leave old members in it. Servers up to 3.5 do not
/// read it; from 3.6 on it is authoritative.
fn check_members_bucket(db: &OpenedDatabase, raft: &RaftState, findings: &mut Findings) {
    let (expected, found) = (
        &raft.unapplied.members_at_consistent_index,
        db.small_buckets.member_ids(),
    );
    // Without consistent index nothing was applied; the bucket is filled from the WAL at the next start.
    if db.facts.consistent_index.is_none() || *expected == found {
        return;
    }
    let reason = format!(
        "bucket lists members {}, raft has {}",
        join_member_ids(&found),
        join_member_ids(expected)
    );
    let me = raft.summary.identity.node;
    let place = "bucket members";
    // Only 3.6 and newer write a storage version.
    let is_authoritative = db.facts.storage_version.is_some();
    if is_authoritative && expected.contains(&me) && !found.contains(&me) {
        findings.add_fault(FaultKind::NotAMember, &db.path, place, reason);
    } else {
        findings.add_warning(WarningKind::MembersDiffer, &db.path, place, reason);
    }
}

/// Formats member IDs as a list.
fn join_member_ids(members: &BTreeSet<MemberId>) -> String {
    if members.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<String> = members.iter().map(MemberId::to_string).collect();
    names.join(", ")
}
