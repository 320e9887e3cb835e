//! Leases.

use std::sync::Arc;

use mainstay_ids::{LeaseId, Revision};

use super::{bytes, put, write};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::expiry::LeaseExpiry;
use crate::request::{KeyRange, Txn};
use crate::watch::{WatchInstance, WatchMessage, WatchOptions};

/// Keys move between leases, and go with the lease they have when it is revoked, in one revision.
pub async fn leases_follow_their_keys(engine: &dyn Engine) {
    let refused = engine.txn(Txn::of(put("a", "1", LeaseId(7)))).await;
    assert!(
        matches!(refused, Err(EngineError::LeaseNotFound)),
        "{refused:?}"
    );
    let first = engine.grant(LeaseId(7), 600).await.expect("grant");
    assert_eq!((first.id, first.granted_ttl), (LeaseId(7), 600));
    let twice = engine.grant(LeaseId(7), 600).await;
    assert!(matches!(twice, Err(EngineError::LeaseExists)), "{twice:?}");
    let second = engine.grant(LeaseId::NONE, 600).await.expect("grant").id;
    assert_ne!(second, LeaseId::NONE);
    for (key, lease) in [
        ("a", LeaseId(7)),
        ("b", LeaseId(7)),
        ("c", LeaseId(7)),
        ("d", second),
    ] {
        engine
            .txn(Txn::of(put(key, "1", lease)))
            .await
            .expect("put");
    }
    engine
        .txn(Txn::of(put("c", "2", second)))
        .await
        .expect("put");
    write(engine, "b", "a put without a lease detaches").await;
    let keys = engine.lease_status(LeaseId(7)).await.expect("status").keys;
    assert_eq!(keys, [bytes("a")]);
    let keys = engine.lease_status(second).await.expect("status").keys;
    assert_eq!(keys, [bytes("c"), bytes("d")]);

    let before = engine.progress().current;
    let revoked = engine.revoke(second).await.expect("revoke");
    assert_eq!(revoked, before.next());
    let (_, left) = engine
        .count_keys(KeyRange::all(), None)
        .await
        .expect("count");
    assert_eq!(left, 2);
    let gone = engine.revoke(second).await;
    assert!(matches!(gone, Err(EngineError::LeaseNotFound)), "{gone:?}");
    assert_eq!(engine.leases().await.expect("leases"), [LeaseId(7)]);
    assert_eq!(
        engine
            .keep_alive(LeaseId(7))
            .await
            .expect("renew")
            .granted_ttl,
        600
    );
}

/// A lease that is not renewed ends, with ordinary delete events.
pub async fn expired_lease_deletes_its_keys(engine: Arc<dyn Engine>) {
    let expiry = LeaseExpiry::start(Arc::clone(&engine));
    let lease = engine.grant(LeaseId::NONE, 1).await.expect("grant");
    assert_eq!(lease.granted_ttl, 2, "etcd's minimum");
    engine
        .txn(Txn::of(put("k", "1", lease.id)))
        .await
        .expect("put");
    let mut watches = WatchInstance::create(Arc::clone(&engine));
    let options = WatchOptions {
        range: KeyRange::all(),
        start: None,
        wants_previous: true,
    };
    watches.register_key_watch(0, options).expect("watch");
    match watches.next().await {
        WatchMessage::Events { events, .. } => {
            let [event] = &events[..] else {
                unreachable!("one key is deleted: {events:?}");
            };
            assert!(event.is_delete);
            assert_eq!(event.version.mod_revision, Revision(3));
            let previous = event.previous.as_ref().map(|version| version.value.clone());
            assert_eq!(previous, Some(bytes("1")));
        }
        other => unreachable!("the watch ended: {other:?}"),
    }
    assert_eq!(engine.leases().await.expect("leases"), []);
    drop(expiry);
}
