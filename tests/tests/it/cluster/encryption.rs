//! TLS in every combination, and renewed certificates. Every combination with three members: `soak`.

use futures::{StreamExt as _, stream};
use mainstay_tests::cluster::managed_etcd::{self, ManagedEtcd};
use mainstay_tests::cluster::member::read_key_space;
use mainstay_tests::cluster::{EncryptedConnections, eventually};

use super::harness::{TestNamespace, assert_no_write_lost, with_namespace, write_and_back_up};
use super::interruptions::kill_controllers;

/// Creates an Etcd with each combination, several in parallel: most of the time is spent waiting.
pub(crate) async fn check_all_combinations(
    stage: &TestNamespace,
    replicas: usize,
    concurrently: usize,
) {
    let all = EncryptedConnections::combinations().enumerate();
    let made = stream::iter(all)
        .map(async |(number, which)| {
            let name = format!("c{number}");
            let size = i32::try_from(replicas).unwrap();
            let spec = managed_etcd::etcd_spec(&stage.namespace, &name, size);
            let (client, asked) = (stage.cluster.client(), (spec, which));
            let etcd = ManagedEtcd::create_encrypted(client, &stage.namespace, &name, asked).await;
            let etcd = etcd.unwrap();
            let members = etcd.wait_for_members(replicas).await.unwrap();
            etcd.wait_until_settled().await.unwrap();
            write_and_back_up(&etcd, &members).await;
            etcd.delete().await.unwrap();
        })
        .buffer_unordered(concurrently);
    assert_eq!(made.count().await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_works_with_every_combination_of_encrypted_connections() {
    with_namespace("tls", async |stage| {
        check_all_combinations(stage, 1, 8).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_certificates_are_served_without_a_restart() {
    with_namespace("renew", async |stage| {
        let mut etcd = stage.create_encrypted_etcd(stage.etcd_spec(3)).await;
        let before = etcd.wait_for_members(3).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = etcd.start_load().await.unwrap();
        etcd.renew_certificates("renewed").await.unwrap();
        kill_controllers(stage).await;
        // Clients verify a name that only the new certificates have.
        let members = etcd.wait_for_members(3).await.unwrap();
        for member in &members {
            let shown = async || member.client().await.ok()?.status().await.ok();
            eventually("a member to serve its new certificate", shown)
                .await
                .unwrap();
        }
        load.wait_for_writes(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_eq!(members, before, "a member was restarted");
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
        write_and_back_up(&etcd, &members).await;
    })
    .await;
}
