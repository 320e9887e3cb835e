//! Builds the report.

use super::database::{OpenedDatabase, WalkSummary};
use super::facts::DirFacts;
use super::findings::Findings;
use super::raft::RaftState;
use super::report::{DirReport, DirVerdict};

/// Collects the facts of the directory, as far as they were read.
pub(super) fn collect_facts(
    db: &OpenedDatabase,
    walk_summary: Option<&WalkSummary>,
    raft: Option<&RaftState>,
) -> DirFacts {
    DirFacts {
        revision: db.facts.revision,
        compact_revision: db.facts.compact_revision(),
        consistent_index: db.facts.consistent_index,
        term: db.facts.term,
        member_id: raft.map(|raft| raft.summary.identity.node),
        cluster_id: raft.map(|raft| raft.summary.identity.cluster),
        members: db.small_buckets.members.clone(),
        alarms: db.small_buckets.alarms.clone(),
        auth_enabled: db.small_buckets.auth_enabled,
        db_txid: db.meta().map(|meta| meta.txid).unwrap_or_default(),
        db_bytes: db.bytes,
        db_bytes_in_use: walk_summary.map(|walk_summary| walk_summary.bytes_in_use),
        live_keys: walk_summary.map(|walk_summary| walk_summary.history.live_keys),
        rows: walk_summary.map(|walk_summary| walk_summary.history.rows),
        leases: walk_summary.map(|walk_summary| walk_summary.leases),
        snapshot_index: raft.map(RaftState::snapshot_index),
        last_wal_index: raft.map(|raft| raft.summary.last_index),
        commit: raft.map(|raft| raft.summary.commit_index()),
        possible_writes_in_wal: raft.map(|raft| raft.unapplied.possible_writes),
        committed_writes_in_wal: raft.map(|raft| raft.unapplied.committed_writes),
        storage_version: db.facts.storage_version.clone(),
        cluster_version: db.small_buckets.cluster_version.clone(),
    }
}

pub(super) fn build_report(
    verdict: DirVerdict,
    findings: Findings,
    facts: Option<DirFacts>,
) -> DirReport {
    DirReport {
        verdict,
        faults: findings.faults,
        warnings: findings.warnings,
        facts,
    }
}
