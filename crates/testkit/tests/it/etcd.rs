//! Servers start, answer, stop and restart.

use std::fs;

use etcd_client::PutOptions;
use mainstay_ids::{LeaseId, Revision};
use mainstay_testkit::etcd::EtcdStartError;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdServer, Kv, each_version};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

each_version! {
    async fn keys_survive_stop_and_kill(version) {
        let mut etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        etcd.client().await.put("a", "1", None).await.unwrap();
        etcd.stop().await;
        etcd.restart().await;
        etcd.client().await.put("b", "2", None).await.unwrap();
        etcd.kill();
        assert!(!etcd.is_healthy().await);
        etcd.restart().await;
        let kv = |key: &str, value: &str, revision| Kv {
            key: key.into(),
            value: value.into(),
            create_revision: Revision(revision),
            mod_revision: Revision(revision),
            version: 1,
            lease: LeaseId::NONE,
        };
        assert_eq!(etcd.all_keys().await, [kv("a", "1", 2), kv("b", "2", 3)]);
    }

    async fn a_given_directory_outlives_the_server(version) {
        let directory = TempDir::new().unwrap();
        let options = EtcdOptions::new().data_dir(directory.path().join("d"));
        let etcd = EtcdServer::start(version, options.clone()).await;
        etcd.client().await.put("kept", "", None).await.unwrap();
        drop(etcd);
        let etcd = EtcdServer::start(version, options).await;
        assert_eq!(etcd.all_keys().await.len(), 1);
    }

    async fn a_damaged_database_is_a_start_error_with_the_log(version) {
        let directory = TempDir::new().unwrap();
        let options = EtcdOptions::new().data_dir(directory.path());
        let mut etcd = EtcdServer::start(version, options.clone()).await;
        etcd.stop().await;
        fs::write(directory.path().join("member/snap/db"), vec![7; 40_000]).unwrap();
        let error = EtcdServer::try_start(version, options).await.unwrap_err();
        assert!(matches!(&error, EtcdStartError::Exited { log, .. } if log.contains("db")), "{error}");
    }

    async fn the_past_is_listed_page_by_page(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut client = etcd.client().await;
        for i in 0..1200 {
            client.put(format!("{i:04}"), "", None).await.unwrap();
        }
        let before_delete = etcd.revision().await;
        client.delete("", Some(etcd_client::DeleteOptions::new().with_all_keys())).await.unwrap();
        assert_eq!(etcd.all_keys().await, []);
        let keys = etcd.all_keys_at(before_delete).await;
        assert_eq!(keys.len(), 1200);
        assert!(keys.is_sorted_by(|a, b| a.key < b.key));
    }

    async fn a_hash_tells_the_compaction_it_was_made_with(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        for value in ["1", "2", "3"] {
            etcd.client().await.put("k", value, None).await.unwrap();
        }
        let whole = etcd.hash_kv(Revision(4)).await;
        assert_eq!(whole.compact_revision, None);
        etcd.compact(Revision(3)).await;
        let compacted = etcd.hash_kv(Revision(4)).await;
        assert_eq!(compacted.compact_revision, Some(Revision(3)));
        assert_ne!(compacted.hash, whole.hash);
    }

    async fn a_lease_is_listed_with_its_keys(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut client = etcd.client().await;
        let id = client.lease_grant(600, None).await.unwrap().id();
        for key in ["z", "a"] {
            let options = PutOptions::new().with_lease(id);
            client.put(key, "", Some(options)).await.unwrap();
        }
        let leases = etcd.list_leases().await;
        assert_eq!(leases.len(), 1);
        assert_eq!(leases[0].id, LeaseId::from_signed(id));
        assert_eq!(leases[0].granted_ttl, 600);
        assert!((1..=600).contains(&leases[0].ttl), "{leases:?}");
        assert_eq!(leases[0].keys, [b"a".to_vec(), b"z".to_vec()]);
    }

    async fn a_snapshot_carries_its_hash_and_satisfies_the_tool(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        etcd.client().await.put("k", "v", None).await.unwrap();
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("snapshot.db");
        let written = etcd.snapshot_to(&path).await;
        let content = fs::read(&path).unwrap();
        assert_eq!(content.len() as u64, written);
        let (database, hash) = content.split_at(content.len() - 32);
        assert_eq!(Sha256::digest(database).as_slice(), hash);
        let status = etcd.etcdutl(["snapshot", "status", "-w", "json", path.to_str().unwrap()]);
        assert!(status.contains(r#""revision":2"#), "{status}");
    }

    async fn the_tool_of_the_server_talks_to_it(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        etcd.etcdctl(["put", "k", "from the tool"]);
        assert_eq!(etcd.etcdctl(["get", "k", "--print-value-only"]), "from the tool\n");
    }

    async fn the_binary_is_of_the_line_it_stands_for(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let release = version.to_string();
        let line = format!("{}.", release.trim_end_matches("-new"));
        let reported = etcd.status().await.version().to_owned();
        assert!(reported.starts_with(&line), "{reported}");
    }

    async fn three_members_share_one_history(version) {
        let cluster = EtcdCluster::start(version, 3, &EtcdOptions::new()).await;
        let [first, .., last] = cluster.members.as_slice() else { panic!("three members") };
        first.client().await.put("k", "v", None).await.unwrap();
        assert_eq!(last.all_keys().await, first.all_keys().await);
        assert_eq!(last.hash_kv(Revision(2)).await, first.hash_kv(Revision(2)).await);
    }
}
