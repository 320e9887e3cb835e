//! A seed determines the history, and the history contains every kind of change.

use std::collections::BTreeSet;

use mainstay_ids::{LeaseId, Revision};
use mainstay_testkit::{EtcdOptions, EtcdRelease, EtcdServer, Workload, each_version};

each_version! {
    async fn same_seed_repeats_the_history(version) {
        let (one, other) = (
            EtcdServer::start(version, EtcdOptions::new()).await,
            EtcdServer::start(version, EtcdOptions::new()).await,
        );
        let reached = Workload::new(7).with_compactions().run(&one, 600).await;
        let again = Workload::new(7).with_compactions().run(&other, 600).await;
        assert_eq!(reached, again);
        assert_eq!(one.hash_kv(reached).await, other.hash_kv(reached).await);
        assert_eq!(one.all_keys().await, other.all_keys().await);
    }

    async fn a_load_has_every_kind_of_key(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut load = Workload::new(11);
        let reached = load.run(&etcd, 800).await;
        let keys = etcd.all_keys().await;
        assert_eq!(reached, etcd.revision().await);
        assert!(reached > Revision(500), "{reached}");
        assert!(keys.iter().any(|kv| kv.value.is_empty()));
        assert!(keys.iter().any(|kv| kv.value.len() > 1000));
        assert!(keys.iter().any(|kv| std::str::from_utf8(&kv.key).is_err()));
        assert!(keys.iter().any(|kv| kv.version > 1));
        assert!(keys.iter().any(|kv| kv.create_revision > Revision(400)));
        assert!(keys.iter().any(|kv| kv.lease != LeaseId::NONE));
        let revisions: BTreeSet<_> = keys.iter().map(|kv| kv.mod_revision).collect();
        assert!(revisions.len() < keys.len(), "some revisions write several keys");
        let granted: BTreeSet<_> = load.leases().iter().copied().collect();
        let live: BTreeSet<_> = etcd.list_leases().await.iter().map(|lease| lease.id).collect();
        assert_eq!(live, granted);
    }

    async fn compactions_are_those_the_load_tells(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut load = Workload::new(3).with_compactions();
        let reached = load.run(&etcd, 500).await;
        assert!(load.compacted_revision() > Revision::EMPTY);
        let hash = etcd.hash_kv(reached).await;
        assert_eq!(hash.compact_revision, Some(load.compacted_revision()));
    }

    async fn a_huge_transaction_is_one_revision(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new().huge_transactions()).await;
        let mut load = Workload::new(1);
        assert_eq!(load.run_huge_transaction(&etcd, 10_000, 64 << 20).await, Revision(2));
        assert_eq!(load.run_huge_transaction(&etcd, 1_000, 1 << 20).await, Revision(3));
        let keys = etcd.all_keys_at(Revision(2)).await;
        assert_eq!(keys.len(), 9_000);
        assert!(keys.iter().map(|kv| kv.value.len()).sum::<usize>() > (64 << 20) - 10_000);
        assert_eq!(etcd.all_keys().await.len(), 9_000 + 900 - 100);
    }

    async fn with_auth_enabled_only_root_goes_on(version) {
        let mut etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut unauthenticated = etcd.client().await;
        let mut load = Workload::new(5);
        load.run(&etcd, 50).await;
        load.enable_auth(&mut etcd).await;
        let reached = load.run(&etcd, 50).await;
        let refused = unauthenticated.put("k", "v", None).await.unwrap_err();
        assert!(refused.to_string().contains("user name is empty"), "{refused}");
        assert_eq!(etcd.revision().await, reached);
        etcd.hash_kv(reached).await;
        assert_eq!(etcd.etcdctl(["user", "list"]), "reader\nroot\n");
    }
}

#[tokio::test]
async fn different_seed_gives_a_different_history() {
    let version = EtcdRelease::NEWEST;
    let (one, other) = (
        EtcdServer::start(version, EtcdOptions::new()).await,
        EtcdServer::start(version, EtcdOptions::new()).await,
    );
    Workload::new(1).run(&one, 50).await;
    Workload::new(2).run(&other, 50).await;
    assert_ne!(one.all_keys().await, other.all_keys().await);
}
