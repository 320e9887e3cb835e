//! Puts a report together.

use super::database::{Opened, Walked};
use super::facts::DirFacts;
use super::findings::Findings;
use super::raft::RaftSide;
use super::report::{DirVerdict, Report};

/// What the directory says about itself, as far as it was read.
pub(super) fn gather(db: &Opened, walked: Option<&Walked>, raft: Option<&RaftSide>) -> DirFacts {
    DirFacts {
        revision: db.facts.revision,
        compact_revision: db.facts.compact_revision(),
        consistent_index: db.facts.consistent_index,
        term: db.facts.term,
        member_id: raft.map(|raft| raft.summary.identity.node),
        cluster_id: raft.map(|raft| raft.summary.identity.cluster),
        members: db.small.members.clone(),
        alarms: db.small.alarms.clone(),
        auth_enabled: db.small.auth_enabled,
        db_txid: db.meta().map(|meta| meta.txid).unwrap_or_default(),
        db_bytes: db.bytes,
        db_bytes_in_use: walked.map(|walked| walked.bytes_in_use),
        live_keys: walked.map(|walked| walked.history.live_keys),
        rows: walked.map(|walked| walked.history.rows),
        leases: walked.map(|walked| walked.leases),
        snapshot_index: raft.map(RaftSide::snapshot_index),
        last_wal_index: raft.map(|raft| raft.summary.last_index),
        commit: raft.map(|raft| raft.summary.commit()),
        possible_writes_in_wal: raft.map(|raft| raft.behind.possible_writes),
        committed_writes_in_wal: raft.map(|raft| raft.behind.committed_writes),
        storage_version: db.facts.storage_version.clone(),
        cluster_version: db.small.cluster_version.clone(),
    }
}

/// The report.
pub(super) fn conclude(verdict: DirVerdict, findings: Findings, facts: Option<DirFacts>) -> Report {
    Report {
        verdict,
        faults: findings.faults,
        warnings: findings.warnings,
        facts,
    }
}
