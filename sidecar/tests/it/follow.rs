//! The watch behind the deltas, on real servers.

mod live {
    use std::time::Duration;

    use clap::Parser;
    use etcd_client::{Txn, TxnOp};
    use steward_ids::Revision;
    use steward_sidecar::args::SidecarArgs;
    use steward_sidecar::etcd::Etcd;
    use steward_sidecar::tail::{Follow, Item};
    use steward_testkit::{EtcdOptions, each_version};

    fn beside(member: &steward_testkit::Etcd) -> Etcd {
        let endpoints = format!("--endpoints={}", member.client_url());
        let args = SidecarArgs::parse_from(["steward-sidecar", &endpoints]);
        Etcd::new(args.etcd.into_config().unwrap())
    }

    async fn next(follow: &mut Follow) -> Item {
        let wait = tokio::time::timeout(Duration::from_mins(1), follow.next());
        wait.await.unwrap().unwrap()
    }

    each_version! {
        // Some versions answer with what is left of that revision: its puts without its deletes.
        async fn a_watch_that_begins_where_etcd_compacted_is_a_gap(version) {
            let member = steward_testkit::Etcd::start(version, EtcdOptions::new()).await;
            let mut client = member.client().await;
            client.put("b", "goes", None).await.unwrap();
            let txn = Txn::new().and_then([TxnOp::put("a", "stays", None), TxnOp::delete("b", None)]);
            client.txn(txn).await.unwrap();
            let compacted = member.revision().await;
            client.put("c", "later", None).await.unwrap();
            member.compact(compacted).await;
            let mut follow = Follow::start(beside(&member), Revision(compacted.0 - 1));
            let item = next(&mut follow).await;
            assert!(matches!(item, Item::Compacted { .. }), "revision {compacted} is not whole");
        }

        async fn a_watch_that_begins_behind_the_compaction_gives_everything(version) {
            let member = steward_testkit::Etcd::start(version, EtcdOptions::new()).await;
            let mut client = member.client().await;
            client.put("a", "1", None).await.unwrap();
            let compacted = member.revision().await;
            member.compact(compacted).await;
            client.put("a", "2", None).await.unwrap();
            let mut follow = Follow::start(beside(&member), compacted);
            let Item::Events { events, is_whole, .. } = next(&mut follow).await else {
                panic!("no events");
            };
            assert_eq!((events.len(), is_whole), (1, true));
        }
    }
}
