//! Watches over the wire.

use std::collections::HashMap;

use etcd_client::{Compare, CompareOp, EventType, Txn, TxnOp, WatchOptions};

use super::process::ServerProcess;

/// The failure of kine#577: progress that is ahead of an event makes an API server's cache stale for ever.
#[tokio::test]
async fn progress_is_never_ahead_of_an_event_of_its_stream() {
    let server = ServerProcess::start(&["--engine", "memory", "--progress-interval", "30ms"]).await;
    let mut writer = server.client().await;
    let mut client = server.client().await;
    let options = WatchOptions::new()
        .with_prefix()
        .with_prev_key()
        .with_progress_notify();
    let mut stream = client.watch("/r/", Some(options.clone())).await.unwrap();
    stream.watch("/s/", Some(options)).await.unwrap();
    let expected = tokio::spawn(async move {
        let mut revisions = Vec::new();
        for step in 0..1500u32 {
            let key = format!("/{}/{}", ["r", "s", "other"][step as usize % 3], step % 17);
            let put = writer.put(key, vec![b'x'; 500], None).await.unwrap();
            if step % 3 < 2 {
                revisions.push(put.header().unwrap().revision());
            }
        }
        revisions
    });
    let mut received = Vec::new();
    let (mut progress, mut newest) = (0, 0);
    while received.len() < 1000 || progress < newest {
        if received.len() % 10 == 0 || received.len() >= 1000 {
            stream.request_progress().await.unwrap();
        }
        let message = stream.message().await.unwrap().unwrap();
        let revision = message.header().unwrap().revision();
        if message.events().is_empty() && !message.created() {
            // A notification of one watch is not about the other.
            if message.watch_id() == -1 {
                assert!(revision >= progress, "progress does not go backwards");
                progress = revision;
            }
            continue;
        }
        for event in message.events() {
            let revision = event.kv().unwrap().mod_revision();
            assert!(
                revision > progress,
                "event {revision} after progress {progress}"
            );
            newest = newest.max(revision);
            received.push(revision);
        }
    }
    received.sort_unstable();
    assert_eq!(received, expected.await.unwrap());
}

#[tokio::test]
async fn watch_from_the_past_replays_and_continues() {
    let server = ServerProcess::start(&["--engine", "memory"]).await;
    let mut client = server.client().await;
    let mut expected: HashMap<i64, usize> = HashMap::new();
    for step in 0..300u32 {
        let ops = [
            TxnOp::put(format!("/r/{}", step % 5), step.to_string(), None),
            TxnOp::put(format!("/r/x{step}"), "1", None),
        ];
        let compare = Compare::version("missing", CompareOp::Equal, 0);
        let done = client
            .txn(Txn::new().when([compare]).and_then(ops))
            .await
            .unwrap();
        expected.insert(done.header().unwrap().revision(), 2);
    }
    let options = WatchOptions::new()
        .with_prefix()
        .with_start_revision(2)
        .with_prev_key();
    let mut stream = client.watch("/r/", Some(options)).await.unwrap();
    client.delete("/r/0", None).await.unwrap();
    let mut found: HashMap<i64, usize> = HashMap::new();
    loop {
        let message = stream.message().await.unwrap().unwrap();
        let in_message: HashMap<i64, usize> =
            message
                .events()
                .iter()
                .fold(HashMap::new(), |mut counts, event| {
                    *counts
                        .entry(event.kv().unwrap().mod_revision())
                        .or_default() += 1;
                    counts
                });
        for (revision, count) in in_message {
            let before = found.insert(revision, count);
            assert_eq!(
                before, None,
                "the events of revision {revision} are not divided"
            );
        }
        let last = message.events().last();
        if last.is_some_and(|event| event.event_type() == EventType::Delete) {
            assert!(last.and_then(etcd_client::Event::prev_kv).is_some());
            break;
        }
    }
    expected.insert(302, 1);
    assert_eq!(found, expected);
}
