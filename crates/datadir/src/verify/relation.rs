//! How database, log and snapshot must fit together.

use std::collections::BTreeSet;
use std::path::Path;

use mainstay_ids::{MemberId, RaftIndex, Term};
use mainstay_wal::v2store::V2Store;
use mainstay_wal::{ConfState, SnapFile};

use super::database::Opened;
use super::findings::Findings;
use super::layout::Layout;
use super::raft::RaftSide;
use super::report::{FaultKind, WarningKind, sentence};
use super::snapshot::everyone;

/// Snapshot index <= consistent index <= last index of the log, and the same term at the consistent index.
pub(super) fn indexes(layout: &Layout, db: &Opened, raft: &RaftSide, findings: &mut Findings) {
    let applied = db.facts.consistent_index.unwrap_or_default();
    let (snapshot, last) = (raft.snapshot_index(), raft.summary.last_index);
    let place = format!("consistent index {applied}");
    if applied < snapshot {
        findings.fault(
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
        findings.fault(
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
        terms(db, raft, stored, logged, findings);
    }
}

/// The term of a database that only knows newer servers and tools is that of its consistent index.
fn terms(db: &Opened, raft: &RaftSide, stored: Term, logged: Term, findings: &mut Findings) {
    if stored == logged {
        return;
    }
    let applied = db.facts.consistent_index.unwrap_or_default();
    let place = format!("consistent index {applied}");
    let reason = format!("the database says term {stored}, the log has term {logged} there");
    if is_term_kept_up(db, raft, stored < logged) {
        findings.fault(FaultKind::TermDiffers, &db.path, place, reason);
    } else {
        findings.warn(WarningKind::TermStale, &db.path, place, reason);
    }
}

/// Servers and tools of 3.4 move the consistent index and leave the term alone. They can have been at work where the
/// cluster version is not above 3.4, since no server joins a cluster whose version is above its own; where none is
/// known yet and the term trails; and in a directory that was restored and never started, which still has the
/// cluster version of its former life.
fn is_term_kept_up(db: &Opened, raft: &RaftSide, trails: bool) -> bool {
    let knows_3_4 = match db.small.cluster_version.as_deref() {
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
fn is_fresh_restore(raft: &RaftSide) -> bool {
    let Some((_, snapshot)) = &raft.snapshot else {
        return false;
    };
    let members = snapshot.conf_state.voters.len() as u64;
    (snapshot.term, snapshot.index) == (Term(1), RaftIndex(members))
        && raft.summary.last_index == snapshot.index
}

/// Whether the member belongs to the cluster, and whether everyone agrees on who does.
pub(super) fn membership(layout: &Layout, db: &Opened, raft: &RaftSide, findings: &mut Findings) {
    let mut removed = raft.behind.removed.clone();
    removed.extend(&db.small.removed);
    if let Some((path, snapshot)) = &raft.snapshot {
        if let Some(store) = snapshot_content(path, snapshot, findings) {
            removed.extend(store.removed);
        }
        mark_agrees(path, snapshot, raft, findings);
    }
    own_membership(layout, raft, &removed, findings);
    bucket_agrees(db, raft, findings);
}

/// The tree inside the snapshot, which must agree with the configuration beside it. 3.7 writes none.
fn snapshot_content(path: &Path, snapshot: &SnapFile, findings: &mut Findings) -> Option<V2Store> {
    if snapshot.data.is_empty() {
        return None;
    }
    let store = match V2Store::parse(&snapshot.data) {
        Ok(store) => store,
        Err(error) => {
            findings.fault(FaultKind::SnapshotContent, path, "", sentence(&error));
            return None;
        }
    };
    if store.user_keys > 0 {
        let reason = format!("{} keys of the v2 api", store.user_keys);
        findings.warn(WarningKind::V2Keys, path, "", reason);
    }
    let listed: BTreeSet<MemberId> = store.members.iter().map(|member| member.id).collect();
    let configured = everyone(&snapshot.conf_state);
    if !listed.is_empty() && listed != configured {
        let reason = format!(
            "the snapshot lists the members {}, its configuration {}",
            names(&listed),
            names(&configured)
        );
        let place = format!("index {}", snapshot.index);
        findings.fault(FaultKind::ConfStateDiffers, path, place, reason);
    }
    Some(store)
}

/// The log's mark of the snapshot names the same configuration. 3.4 writes none.
fn mark_agrees(path: &Path, snapshot: &SnapFile, raft: &RaftSide, findings: &mut Findings) {
    let place = (snapshot.term, snapshot.index);
    let marked = raft
        .summary
        .snapshots
        .iter()
        .filter(|mark| (mark.term, mark.index) == place)
        .filter_map(|mark| mark.conf_state.as_ref());
    for state in marked {
        if sorted(state) != sorted(&snapshot.conf_state) {
            let reason = format!(
                "the snapshot is of the members {}, the log says {} there",
                names(&everyone(&snapshot.conf_state)),
                names(&everyone(state))
            );
            let place = format!("index {}", snapshot.index);
            findings.fault(FaultKind::ConfStateDiffers, path, place, reason);
        }
    }
}

/// A configuration in which the order of members does not count.
fn sorted(state: &ConfState) -> ConfState {
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
fn own_membership(
    layout: &Layout,
    raft: &RaftSide,
    removed: &BTreeSet<MemberId>,
    findings: &mut Findings,
) {
    let me = raft.summary.identity.node;
    let known = &raft.behind.members_at_end;
    let place = format!("member {me}");
    if known.contains(&me) {
        return;
    }
    if removed.contains(&me) {
        let reason = "the member was removed from the cluster".to_owned();
        findings.warn(WarningKind::MemberRemoved, &layout.wal, place, reason);
    } else if raft.snapshot.is_some() {
        let reason = format!("the log is of a member that is not one of {}", names(known));
        findings.fault(FaultKind::NotAMember, &layout.wal, place, reason);
    } else if raft.summary.last_index > RaftIndex(0) {
        let reason = "the entry that adds the member is not in its log yet".to_owned();
        findings.warn(WarningKind::NotYetAMember, &layout.wal, place, reason);
    }
}

/// The `members` bucket follows the log. Restores by 3.4 leave old members in it, and up to 3.5 nobody reads it; from
/// 3.6 on the membership comes from there.
fn bucket_agrees(db: &Opened, raft: &RaftSide, findings: &mut Findings) {
    let (expected, found) = (&raft.behind.members_at_database, db.small.member_ids());
    if db.facts.consistent_index.is_none() || *expected == found {
        return;
    }
    let reason = format!(
        "the bucket lists the members {}, raft knows {} there",
        names(&found),
        names(expected)
    );
    let me = raft.summary.identity.node;
    let place = "bucket members";
    let is_authoritative = db.facts.storage_version.is_some();
    if is_authoritative && expected.contains(&me) && !found.contains(&me) {
        findings.fault(FaultKind::NotAMember, &db.path, place, reason);
    } else {
        findings.warn(WarningKind::MembersDiffer, &db.path, place, reason);
    }
}

/// Members as a list for people.
fn names(members: &BTreeSet<MemberId>) -> String {
    if members.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<String> = members.iter().map(MemberId::to_string).collect();
    names.join(", ")
}
