//! Compaction and watches.

use std::sync::Arc;

use mainstay_ids::Revision;

use super::{below, bytes, remove, write};
use crate::answer::ChangeEvent;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::request::KeyRange;
use crate::watch::{WatchInstance, WatchMessage, WatchOptions};

/// A compaction refuses what it made unreadable, and nothing else.
pub async fn compaction_keeps_what_is_readable(engine: Arc<dyn Engine>) {
    write(&*engine, "/r/a", "1").await; // 2
    write(&*engine, "/r/b", "1").await; // 3
    write(&*engine, "/r/a", "2").await; // 4
    remove(&*engine, "/r/b").await; // 5
    write(&*engine, "/r/c", "1").await; // 6
    let before = engine.hash(None).await.expect("hash");
    let progress = engine.compact(Revision(5)).await.expect("compact");
    assert_eq!(progress.compacted, Some(Revision(5)));
    for revision in [Revision(5), Revision(2)] {
        let again = engine.compact(revision).await;
        assert!(
            matches!(again, Err(EngineError::Compacted { .. })),
            "{again:?}"
        );
    }
    let future = engine.compact(Revision(99)).await;
    assert!(
        matches!(future, Err(EngineError::FutureRevision { .. })),
        "{future:?}"
    );

    let old = engine.get_at_revision(bytes("/r/a"), Revision(4)).await;
    let oldest = Revision(5);
    assert!(
        matches!(old, Err(EngineError::Compacted { oldest: found }) if found == oldest),
        "{old:?}"
    );
    let (revision, kept) = engine
        .get_at_revision(bytes("/r/a"), Revision(5))
        .await
        .expect("get");
    assert_eq!(revision, Revision(6));
    assert_eq!(kept.map(|version| version.value), Some(bytes("2")));
    let after = engine.hash(None).await.expect("hash");
    assert_ne!(
        before.hash, after.hash,
        "superseded rows are no longer hashed"
    );

    let mut watches = WatchInstance::create(Arc::clone(&engine));
    let (late, _) = watches
        .register_key_watch(0, from(below("/r/"), 4))
        .expect("watch");
    match watches.next().await {
        WatchMessage::Compacted { id, oldest } => assert_eq!((id, oldest), (late, Revision(5))),
        other => unreachable!("the watch starts before the history: {other:?}"),
    }
    // The delete at the compacted revision itself is still delivered.
    watches
        .register_key_watch(0, from(below("/r/"), 5))
        .expect("watch");
    let events = collect(&mut watches, Revision(6)).await;
    let shown: Vec<_> = events
        .iter()
        .map(|event| (&event.version.key[..], event.is_delete))
        .collect();
    assert_eq!(shown, [(&b"/r/b"[..], true), (b"/r/c", false)]);
}

/// A watch from any retained revision reports every event once, in order, with the version before it.
pub async fn a_watch_from_the_past_equals_the_history(engine: Arc<dyn Engine>) {
    for step in 0..40u32 {
        write(&*engine, &format!("/r/{}", step % 5), &format!("{step}")).await;
        write(&*engine, &format!("/other/{step}"), "x").await;
        if step % 7 == 6 {
            remove(&*engine, &format!("/r/{}", step % 5)).await;
        }
    }
    let last = engine.progress().current;
    let mut whole = WatchInstance::create(Arc::clone(&engine));
    whole
        .register_key_watch(0, from(below("/r/"), 1))
        .expect("watch");
    let all = collect(&mut whole, last).await;
    assert_eq!(all.len(), 45);
    for event in &all {
        let before = event.version.mod_revision.previous();
        let (_, expected) = engine
            .get_at_revision(event.version.key.clone(), before)
            .await
            .expect("get the version before");
        assert_eq!(event.previous, expected, "{event:?}");
        assert_eq!(event.is_create(), expected.is_none(), "{event:?}");
    }
    for start in [2, 17, 50, last.0] {
        let mut partial = WatchInstance::create(Arc::clone(&engine));
        partial
            .register_key_watch(0, from(below("/r/"), start))
            .expect("watch");
        let found = collect(&mut partial, last).await;
        let wanted = all
            .iter()
            .filter(|event| event.version.mod_revision.0 >= start);
        assert!(found.iter().eq(wanted), "from {start}");
    }
}

/// A stream reports progress only when all its events are delivered (the failure of kine#577).
pub async fn progress_never_exceeds_an_undelivered_event(engine: Arc<dyn Engine>) {
    let mut watches = WatchInstance::create(Arc::clone(&engine));
    let (first, _) = watches
        .register_key_watch(0, from(below("/r/"), 0))
        .expect("watch");
    watches
        .register_key_watch(0, from(below("/s/"), 0))
        .expect("watch");
    assert_eq!(watches.synced(), Some(Revision(1)));
    let unrelated = write(&*engine, "/other", "x").await;
    assert_eq!(
        watches.synced(),
        Some(unrelated),
        "no watch of the stream has an event"
    );
    let missed = write(&*engine, "/s/a", "1").await;
    assert_eq!(
        watches.synced(),
        None,
        "the event at {missed} is not delivered"
    );
    assert_eq!(
        watches.synced_key_watch(first),
        Some(missed),
        "this watch has none"
    );
    let events = collect(&mut watches, missed).await;
    assert_eq!(events.len(), 1);
    assert_eq!(watches.synced(), Some(missed));
}

/// A stream that is not read neither holds up writes nor another stream, and is complete when it is read.
pub async fn slow_watch_delays_nobody(engine: Arc<dyn Engine>) {
    let mut slow = WatchInstance::create(Arc::clone(&engine));
    slow.register_key_watch(0, from(KeyRange::all(), 0))
        .expect("watch");
    let mut quick = WatchInstance::create(Arc::clone(&engine));
    quick
        .register_key_watch(0, from(KeyRange::all(), 0))
        .expect("watch");
    let value = "x".repeat(2000);
    let mut delivered = Vec::new();
    for step in 0..400u32 {
        let revision = write(&*engine, &format!("/r/{}", step % 9), &value).await;
        delivered.extend(collect(&mut quick, revision).await);
    }
    assert_eq!(delivered.len(), 400);
    let late = collect(&mut slow, engine.progress().current).await;
    assert_eq!(late, delivered);
}

fn from(range: KeyRange, start: i64) -> WatchOptions {
    WatchOptions {
        range,
        start: (start > 0).then_some(Revision(start)),
        wants_previous: true,
    }
}

/// Reads events until the instance is synced to at least `upto`.
async fn collect(watches: &mut WatchInstance, upto: Revision) -> Vec<ChangeEvent> {
    let mut collected: Vec<ChangeEvent> = Vec::new();
    while watches.synced().is_none_or(|synced| synced < upto) {
        match watches.next().await {
            WatchMessage::Events { events, .. } => collected.extend(events),
            WatchMessage::Advanced { .. } => {}
            other => unreachable!("the watch ended: {other:?}"),
        }
    }
    assert!(
        collected.is_sorted_by_key(|event| event.version.mod_revision),
        "events are in the order of revisions"
    );
    collected
}
