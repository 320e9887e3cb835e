//! Certificates, in every combination, and new ones. Every combination with three members: `soak`.

use futures::{StreamExt as _, stream};
use mainstay_tests::cluster::managed::{self, Managed};
use mainstay_tests::cluster::member::content;
use mainstay_tests::cluster::{Encrypted, eventually};

use super::midway::kill_controllers;
use super::stage::{Stage, assert_kept, on_stage, write_and_back_up};

/// Makes an Etcd of so many members with each combination, some of them at the same time: most of it is waiting.
pub(crate) async fn every_combination(stage: &Stage, replicas: usize, at_once: usize) {
    let all = Encrypted::combinations().enumerate();
    let made = stream::iter(all)
        .map(async |(number, which)| {
            let name = format!("c{number}");
            let size = i32::try_from(replicas).unwrap();
            let spec = managed::spec(&stage.namespace, &name, size);
            let (client, asked) = (stage.cluster.client(), (spec, which));
            let etcd = Managed::create_encrypted(client, &stage.namespace, &name, asked).await;
            let etcd = etcd.unwrap();
            let members = etcd.members(replicas).await.unwrap();
            etcd.settled().await.unwrap();
            write_and_back_up(&etcd, &members).await;
            etcd.delete().await.unwrap();
        })
        .buffer_unordered(at_once);
    assert_eq!(made.count().await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_serves_and_is_backed_up_whichever_of_its_connections_are_encrypted() {
    on_stage("tls", async |stage| every_combination(stage, 1, 8).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_certificates_are_shown_without_a_restart() {
    on_stage("renew", async |stage| {
        let mut etcd = stage.encrypted(stage.spec(3)).await;
        let before = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        etcd.renew_certificates("renewed").await.unwrap();
        kill_controllers(stage).await;
        // Clients ask for a name only the new certificates have.
        let members = etcd.members(3).await.unwrap();
        for member in &members {
            let shown = async || member.client().await.ok()?.status().await.ok();
            eventually("a member that shows its new certificate", shown)
                .await
                .unwrap();
        }
        load.has_written(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_eq!(members, before, "nobody was restarted");
        assert_kept(&written, &content(&members).await.unwrap());
        write_and_back_up(&etcd, &members).await;
    })
    .await;
}
