//! An etcd with authentication.

use std::fs;

use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdServer, Workload, each_version};
use tempfile::TempDir;

use super::{SidecarHarness, SidecarStore};

async fn put_keys(etcd: &EtcdServer, keys: usize) {
    let mut client = etcd.client().await;
    for key in 0..keys {
        client.put(format!("k{key}"), "", None).await.unwrap();
    }
}

each_version! {
    // The token of the sidecar expires, and its password has changed.
    async fn a_password_may_change_while_the_sidecar_runs(version) {
        let home = TempDir::new().unwrap();
        let password = home.path().join("password");
        fs::write(&password, "first\n").unwrap();
        let mut etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        Workload::new(61).enable_auth(&mut etcd).await;
        let mut client = etcd.client().await;
        client.user_add("backup", "first", None).await.unwrap();
        client.user_grant_role("backup", "root").await.unwrap();
        let flags = [
            ("etcd-username", "backup"),
            ("etcd-password-file", password.to_str().unwrap()),
        ];
        let stage = SidecarHarness::start_on(EtcdCluster::from_members(vec![etcd]), SidecarStore::local(home.path()), &flags).await;
        stage.wait_until_settled().await;
        let etcd = &stage.cluster.members[0];
        put_keys(etcd, 20).await;
        stage.wait_until_stored().await;

        client.user_change_password("backup", "second").await.unwrap();
        fs::write(&password, "second\n").unwrap();
        put_keys(etcd, 20).await;
        let stored = stage.wait_until_stored().await;
        let reached = stage.backup().verify();
        assert!(reached >= stored, "{reached} {stored}");
    }
}
