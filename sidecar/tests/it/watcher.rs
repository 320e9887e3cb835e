//! The watch that captures events for delta snapshots, on real etcd servers.

mod live {
    use std::time::Duration;

    use clap::Parser;
    use etcd_client::{Txn, TxnOp};
    use jiff::Timestamp;
    use mainstay_archive::compression::Compression;
    use mainstay_ids::Revision;
    use mainstay_sidecar::args::SidecarArgs;
    use mainstay_sidecar::etcd::EtcdClient;
    use mainstay_sidecar::tail::{DeltaBatch, EtcdWatcher, LeaseTtls, WatchItem};
    use mainstay_testkit::{EtcdOptions, each_version, newest_version};

    fn client_of(member: &mainstay_testkit::EtcdServer) -> EtcdClient {
        let endpoints = format!("--endpoints={}", member.client_url());
        let args = SidecarArgs::parse_from(["mainstay-sidecar", &endpoints]);
        EtcdClient::new(args.etcd.into_config().unwrap())
    }

    async fn next_item(follow: &mut EtcdWatcher) -> WatchItem {
        let wait = tokio::time::timeout(Duration::from_mins(2), follow.next());
        wait.await.unwrap().unwrap()
    }

    each_version! {
        // Some etcd versions deliver only what the compaction left of that revision: its puts without its deletes.
        async fn a_watch_that_begins_where_etcd_compacted_is_a_gap(version) {
            let member = mainstay_testkit::EtcdServer::start(version, EtcdOptions::new()).await;
            let mut client = member.client().await;
            client.put("b", "goes", None).await.unwrap();
            let txn = Txn::new().and_then([TxnOp::put("a", "stays", None), TxnOp::delete("b", None)]);
            client.txn(txn).await.unwrap();
            let compacted = member.revision().await;
            client.put("c", "later", None).await.unwrap();
            member.compact(compacted).await;
            let mut follow = EtcdWatcher::start(client_of(&member), Revision(compacted.0 - 1));
            let item = next_item(&mut follow).await;
            assert!(matches!(item, WatchItem::Compacted { .. }), "revision {compacted} is incomplete after the compaction");
        }

        async fn a_watch_that_begins_behind_the_compaction_gives_everything(version) {
            let member = mainstay_testkit::EtcdServer::start(version, EtcdOptions::new()).await;
            let mut client = member.client().await;
            client.put("a", "1", None).await.unwrap();
            let compacted = member.revision().await;
            member.compact(compacted).await;
            client.put("a", "2", None).await.unwrap();
            let mut follow = EtcdWatcher::start(client_of(&member), compacted);
            let WatchItem::Events { events, is_complete, .. } = next_item(&mut follow).await else {
                panic!("no events");
            };
            assert_eq!((events.len(), is_complete), (1, true));
        }
    }

    newest_version! {
        // etcd serves a lagging (unsynced) watch so slowly that under load it never catches up.
        async fn a_watch_that_fell_behind_is_overtaken_by_one_at_the_present(version) {
            let options = EtcdOptions::new().quota_bytes(8 << 30);
            let member = mainstay_testkit::EtcdServer::start(version, options).await;
            let mut follow = EtcdWatcher::start(client_of(&member), member.revision().await);
            // The watch has to catch up once before it can lag.
            write_keys(&member, 50, 10).await;
            let after = member.revision().await;
            wait_for_revision(&mut follow, after).await;
            // The test does not read events until the watch lags by thousands of revisions.
            write_keys(&member, 8_000, 4_000).await;
            let newest = member.revision().await;
            let writing = write_keys(&member, 2_000, 10);
            tokio::pin!(writing);
            let (mut batch, mut is_written, mut reopened) = (DeltaBatch::starting_after(after, Compression::Zstd), false, 0);
            while !is_written || batch.captured().0 < newest.0 + 2_000 {
                tokio::select! {
                    () = &mut writing, if !is_written => is_written = true,
                    item = next_item(&mut follow) => match item {
                        WatchItem::Events { events, is_complete, .. } => push_events(&mut batch, events, is_complete),
                        WatchItem::Reopened { error: None } => {
                            batch.discard_partial();
                            reopened += 1;
                        }
                        _ => panic!("the watch ended"),
                    },
                }
            }
            assert!(reopened > 0, "the watch caught up by itself");
            let sealed = batch.seal(Timestamp::now()).unwrap().unwrap();
            assert_eq!(sealed.events, 10_000, "every event exactly once");
        }
    }

    /// Reads events up to a revision.
    async fn wait_for_revision(follow: &mut EtcdWatcher, revision: Revision) {
        loop {
            let WatchItem::Events { events, .. } = next_item(follow).await else {
                continue;
            };
            let last = events.last().and_then(|event| event.kv());
            if last.is_some_and(|last| last.mod_revision() >= revision.0) {
                return;
            }
        }
    }

    /// Writes `puts` values of `bytes` each; large ones fill the buffers between etcd and the watcher.
    async fn write_keys(member: &mainstay_testkit::EtcdServer, puts: usize, bytes: usize) {
        let kv = member.client().await.kv_client();
        let value = "x".repeat(bytes);
        let writers = (0..50).map(|writer| {
            let (mut kv, value) = (kv.clone(), value.clone());
            async move {
                for _ in 0..puts / 50 {
                    kv.put(format!("k{writer}"), value.clone(), None)
                        .await
                        .unwrap();
                }
            }
        });
        futures::future::join_all(writers).await;
    }

    fn push_events(batch: &mut DeltaBatch, events: Vec<etcd_client::Event>, is_complete: bool) {
        let leases = LeaseTtls::default();
        for event in events {
            batch
                .push(event, Timestamp::now(), &leases)
                .expect("no revision is missing");
        }
        if is_complete {
            batch.finish_revision(&leases).unwrap();
        }
    }
}
