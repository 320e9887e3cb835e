//! An etcd that asks who is there.

use std::fs;

use mainstay_testkit::{Etcd, EtcdCluster, EtcdOptions, Load, each_version};
use tempfile::TempDir;

use super::{Place, Stage};

async fn put(etcd: &Etcd, keys: usize) {
    let mut client = etcd.client().await;
    for key in 0..keys {
        client.put(format!("k{key}"), "", None).await.unwrap();
    }
}

each_version! {
    // The login the sidecar came with ends, and its password is another one now.
    async fn a_password_may_change_while_the_sidecar_runs(version) {
        let home = TempDir::new().unwrap();
        let password = home.path().join("password");
        fs::write(&password, "first\n").unwrap();
        let mut etcd = Etcd::start(version, EtcdOptions::new()).await;
        Load::new(61).enable_auth(&mut etcd).await;
        let mut client = etcd.client().await;
        client.user_add("backup", "first", None).await.unwrap();
        client.user_grant_role("backup", "root").await.unwrap();
        let flags = [
            ("etcd-username", "backup"),
            ("etcd-password-file", password.to_str().unwrap()),
        ];
        let stage = Stage::on(EtcdCluster::of(vec![etcd]), Place::local(home.path()), &flags).await;
        stage.settled().await;
        let etcd = &stage.cluster.members[0];
        put(etcd, 20).await;
        stage.stored().await;

        client.user_change_password("backup", "second").await.unwrap();
        fs::write(&password, "second\n").unwrap();
        put(etcd, 20).await;
        let stored = stage.stored().await;
        let reached = stage.backup().verify();
        assert!(reached >= stored, "{reached} {stored}");
    }
}
