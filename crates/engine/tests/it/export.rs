//! An exported file is an etcd database: its hash is the one the engine reports.

use std::fs::File;

use bytes::Bytes;
use mainstay_bbolt::{BboltError, Database};
use mainstay_engine::{DeleteRange, Engine, KeyRange, Op, Put, PutLease, Txn, memory_engine};
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::{DatabaseStatus, hash::hash_kv};

async fn put(engine: &dyn Engine, key: u32, value: u32) {
    let op = Op::Put(Put {
        key: Bytes::from(format!("/r/{key}")),
        value: Some(Bytes::from(value.to_string())),
        lease: PutLease::Set(LeaseId::NONE),
        wants_previous: false,
    });
    engine.txn(Txn::of(op)).await.expect("put a key");
}

#[tokio::test]
async fn exported_database_has_the_hash_that_the_engine_reports() {
    let engine = memory_engine(None).unwrap();
    for step in 0..300u32 {
        put(&engine, step * 7 % 31, step).await;
        if step % 11 == 0 {
            let range = KeyRange::Key(Bytes::from(format!("/r/{}", step * 7 % 31)));
            let op = Op::DeleteRange(DeleteRange {
                range,
                wants_previous: false,
            });
            engine.txn(Txn::of(op)).await.unwrap();
        }
    }
    engine.grant(LeaseId(5), 60).await.unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("db");
    for compact in [None, Some(Revision(100)), Some(Revision(220))] {
        if let Some(revision) = compact {
            engine.compact(revision).await.unwrap();
        }
        let revision = engine.export(&path).await.unwrap();
        let database = Database::open(File::open(&path).unwrap()).unwrap();
        mainstay_bbolt::check(&database, |_, _| Ok::<(), BboltError>(())).unwrap();
        let status = DatabaseStatus::read(&database).unwrap();
        assert_eq!(
            (status.revision, status.compact_revision()),
            (revision, compact)
        );
        for at in [revision, Revision(250)] {
            let expected = hash_kv(&database, Some(at)).unwrap();
            let found = engine.hash(Some(at)).await.unwrap();
            assert_eq!(
                found.hash, expected.hash,
                "at {at} compacted at {compact:?}"
            );
        }
    }
}
