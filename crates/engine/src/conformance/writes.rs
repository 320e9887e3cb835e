//! Reads and writes.

use mainstay_ids::{LeaseId, Revision};

use super::{below, bytes, delete, done, put, remove, write};
use crate::answer::{KeyVersion, OpAnswer};
use crate::engine::{Engine, WriteOutcome};
use crate::error::EngineError;
use crate::request::{
    Compare, CompareResult, CompareTarget, KeyRange, Op, Projection, RangeQuery, Txn,
};

/// The four conditional writes of an API server, when their condition holds and when it does not.
pub async fn conditional_writes_answer_like_etcd(engine: &dyn Engine) {
    let (a, none) = (bytes("/registry/pods/a"), LeaseId::NONE);
    assert_eq!(engine.progress().current, Revision::EMPTY);
    let created = engine.create_if_absent(a.clone(), bytes("1"), none).await;
    assert_eq!(done(&created.expect("create")), Revision(2));
    let again = engine.create_if_absent(a.clone(), bytes("2"), none).await;
    let nothing_read = WriteOutcome::Conflict {
        revision: Revision(2),
        present: None,
    };
    assert_eq!(again.expect("create again"), nothing_read);

    let first = KeyVersion {
        key: a.clone(),
        value: bytes("1"),
        create_revision: Revision(2),
        mod_revision: Revision(2),
        version: 1,
        lease: none,
    };
    let stale = engine
        .update_at_revision(a.clone(), Revision(9), (bytes("2"), none))
        .await;
    let present = WriteOutcome::Conflict {
        revision: Revision(2),
        present: Some(first),
    };
    assert_eq!(stale.expect("update"), present);
    let updated = engine
        .update_at_revision(a.clone(), Revision(2), (bytes("2"), none))
        .await;
    assert_eq!(done(&updated.expect("update")), Revision(3));
    let (_, version) = engine.get_latest(a.clone()).await.expect("get");
    assert_eq!(version.map(|version| version.version), Some(2));

    let deleted = engine.delete_key(a.clone(), Revision(3)).await;
    assert_eq!(done(&deleted.expect("delete")), Revision(4));
    let missing = engine.delete_key(a.clone(), Revision(3)).await;
    let nothing = WriteOutcome::Conflict {
        revision: Revision(4),
        present: None,
    };
    assert_eq!(missing.expect("delete again"), nothing);

    let key = bytes("compact_rev_key");
    let elected = engine.compact_vote(key.clone(), 0, bytes("4")).await;
    assert_eq!(done(&elected.expect("vote")), Revision(5));
    match engine
        .compact_vote(key, 0, bytes("5"))
        .await
        .expect("vote again")
    {
        WriteOutcome::Conflict {
            present: Some(version),
            ..
        } => assert_eq!(version.version, 1),
        other => unreachable!("the vote was lost before: {other:?}"),
    }
}

/// Nested transactions: one revision, compares against the state before, reads of the transaction's own writes.
pub async fn transactions_get_one_revision(engine: &dyn Engine) {
    write(engine, "k", "old").await;
    let is_new = Compare {
        range: KeyRange::Key(bytes("k")),
        target: CompareTarget::Value(bytes("new")),
        result: CompareResult::Equal,
    };
    let inner = Txn {
        compare: vec![is_new],
        success: vec![put("inner", "held", LeaseId::NONE)],
        failure: vec![put("inner", "did not hold", LeaseId::NONE)],
    };
    let txn = Txn {
        compare: Vec::new(),
        success: vec![
            put("k", "new", LeaseId::NONE),
            Op::Txn(inner),
            Op::Range(RangeQuery::latest(KeyRange::all())),
        ],
        failure: Vec::new(),
    };
    let answer = engine.txn(txn).await.expect("transaction");
    assert_eq!((answer.revision, answer.succeeded), (Revision(3), true));
    let Some(OpAnswer::Range(read)) = answer.answers.last() else {
        unreachable!("the last operation is a read: {answer:?}");
    };
    let values: Vec<_> = read.keys.iter().map(|version| &version.value[..]).collect();
    assert_eq!(values, [&b"did not hold"[..], b"new"]);
    assert!(
        read.keys
            .iter()
            .all(|version| version.mod_revision == Revision(3))
    );

    let nothing = engine
        .txn(Txn::of(delete("missing")))
        .await
        .expect("delete");
    assert_eq!(nothing.revision, Revision(3), "nothing was deleted");
    let future = RangeQuery {
        at: Some(Revision(4)),
        ..RangeQuery::latest(KeyRange::all())
    };
    let txn = Txn {
        success: vec![put("k", "never", LeaseId::NONE), Op::Range(future)],
        ..Txn::default()
    };
    let refused = engine.txn(txn).await;
    assert!(
        matches!(refused, Err(EngineError::FutureRevision { .. })),
        "{refused:?}"
    );
    assert_eq!(
        engine.progress().current,
        Revision(3),
        "a refused transaction writes nothing"
    );
}

/// Reads at every revision, with limits and counts, against the writes that made them.
pub async fn reads_at_each_revision_agree(engine: &dyn Engine) {
    let mut expected: Vec<Vec<String>> = vec![Vec::new(), Vec::new()];
    let mut keys: Vec<String> = Vec::new();
    for step in 0..60u32 {
        let key = format!("/r/{:02}", step * 7 % 13);
        if keys.contains(&key) && step % 3 == 0 {
            remove(engine, &key).await;
            keys.retain(|other| *other != key);
        } else {
            write(engine, &key, &step.to_string()).await;
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.sort();
        expected.push(keys.clone());
    }
    for (revision, keys) in (0i64..).zip(&expected).skip(1) {
        for limit in [None, Some(1), Some(5)] {
            let query = RangeQuery {
                range: below("/r/"),
                at: Some(Revision(revision)),
                limit,
                projection: Projection::Full,
            };
            let answer = engine.range_keys(query).await.expect("read a revision");
            assert_eq!(answer.count, keys.len(), "revision {revision}");
            assert_eq!(
                answer.revision,
                Revision(61),
                "the store's, not the one read"
            );
            let found: Vec<_> = answer.keys.iter().map(|version| &version.key[..]).collect();
            let shown = limit.unwrap_or(usize::MAX).min(keys.len());
            let wanted: Vec<_> = keys.iter().take(shown).map(String::as_bytes).collect();
            assert_eq!(found, wanted, "revision {revision}, limit {limit:?}");
        }
        let counted = engine
            .count_keys(below("/r/"), Some(Revision(revision)))
            .await;
        assert_eq!(counted.expect("count"), (Revision(61), keys.len()));
    }
}

/// A full store refuses puts and still deletes, so that space can be made.
pub async fn quota_refuses_puts_only(engine: &dyn Engine) {
    let value = "x".repeat(1000);
    let mut revision = Revision::EMPTY;
    let refused = loop {
        match engine.txn(Txn::of(put("k", &value, LeaseId::NONE))).await {
            Ok(answer) => revision = answer.revision,
            Err(error) => break error,
        }
        assert!(revision < Revision(10), "the quota is never reached");
    };
    assert!(
        matches!(refused, EngineError::NoSpace { .. }),
        "{refused:?}"
    );
    let deleted = remove(engine, "k").await;
    assert_eq!(deleted, revision.next());
    engine.compact(deleted).await.expect("compact");
    write(engine, "k", "fits again").await;
}
