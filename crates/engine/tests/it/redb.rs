use std::sync::Arc;

use bytes::Bytes;
use mainstay_engine::{
    Engine, EngineError, KeyRange, Mvcc, WriteOutcome, conformance, redb_engine,
};
use mainstay_ids::{LeaseId, Revision};
use tempfile::TempDir;

#[tokio::test]
async fn redb_engine_conforms() {
    let scratch = TempDir::new().unwrap();
    let mut number = 0;
    conformance::everything(|quota| {
        number += 1;
        redb_engine(&scratch.path().join(number.to_string()), quota).unwrap()
    })
    .await;
}

async fn create(engine: &dyn Engine, key: String) -> WriteOutcome {
    let created = engine.create_if_absent(Bytes::from(key), Bytes::from("1"), LeaseId::NONE);
    created.await.expect("create a key")
}

fn open(directory: &TempDir) -> Mvcc {
    redb_engine(directory.path(), None).expect("open the data directory")
}

#[tokio::test]
async fn reopened_engine_has_everything_and_uses_no_revision_twice() {
    let directory = TempDir::new().unwrap();
    let engine = open(&directory);
    let lease = engine.grant(LeaseId(9), 600).await.unwrap();
    engine
        .create_if_absent(Bytes::from("leased"), Bytes::from("1"), lease.id)
        .await
        .unwrap();
    for key in 0..20 {
        create(&engine, format!("/r/{key}")).await;
    }
    for key in 0..10i64 {
        let deleted = engine.delete_key(Bytes::from(format!("/r/{key}")), Revision(3 + key));
        assert!(matches!(deleted.await.unwrap(), WriteOutcome::Done(_)));
    }
    // The newest revisions are deletes, and all of them are compacted.
    let last = engine.progress().current;
    engine.compact(last).await.unwrap();
    let before = engine.hash(None).await.unwrap();
    drop(engine);

    let engine = open(&directory);
    assert_eq!(engine.hash(None).await.unwrap(), before);
    assert_eq!(engine.progress().current, last);
    let status = engine.lease_status(LeaseId(9)).await.unwrap();
    assert_eq!(status.keys, [Bytes::from("leased")]);
    let old = engine
        .count_keys(KeyRange::all(), Some(last.previous()))
        .await;
    assert!(matches!(old, Err(EngineError::Compacted { .. })), "{old:?}");
    assert_eq!(
        create(&engine, "next".to_owned()).await,
        WriteOutcome::Done(last.next())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writes_share_commits_and_get_one_revision_each() {
    let directory = TempDir::new().unwrap();
    let engine: Arc<dyn Engine> = Arc::new(open(&directory));
    let mut writers = tokio::task::JoinSet::new();
    for key in 0..300 {
        let engine = Arc::clone(&engine);
        writers.spawn(async move { create(&*engine, format!("/r/{key}")).await });
    }
    let mut revisions: Vec<i64> = Vec::new();
    while let Some(written) = writers.join_next().await {
        match written.unwrap() {
            WriteOutcome::Done(revision) => revisions.push(revision.0),
            conflict @ WriteOutcome::Conflict { .. } => unreachable!("{conflict:?}"),
        }
    }
    revisions.sort_unstable();
    assert!(revisions.into_iter().eq(2..302));
    engine.defragment().await.unwrap();
    let (_, count) = engine.count_keys(KeyRange::all(), None).await.unwrap();
    assert_eq!(count, 300);
}
