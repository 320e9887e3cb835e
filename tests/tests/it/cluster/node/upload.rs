//! A sidecar dies while it writes.

use std::pin::pin;
use std::time::Duration;

use rand::Rng as _;
use serde_json::json;
use steward_crds::ops::TaskState;
use steward_tests::cluster::eventually;
use tokio::time::sleep;

use super::super::midway::kill_controllers;
use super::super::stage::{assert_recovered, on_own_stage, write_and_back_up};

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_is_killed_while_it_uploads_leaves_a_backup_that_is_whole() {
    on_own_stage("upload", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let members = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let mut client = members[0].client().await.unwrap();
        let mut noise = vec![0; 512 << 10];
        for _ in 0..64 {
            rand::rng().fill(&mut noise[..]);
            client.put("/large", noise.clone(), None).await.unwrap();
        }
        for (name, after) in [("soon", 0), ("later", 100), ("late", 300)] {
            etcd.settled().await.unwrap();
            let task = json!({"onDemandSnapshot": {"type": "full"}});
            let mut asked = pin!(etcd.ask(name, task));
            let uploads = async || {
                let status = members[0].sidecar().await?;
                (status["fullUnderWay"] == true).then_some(())
            };
            tokio::select! {
                ended = &mut asked => panic!("{name}: no upload was seen: {ended:?}"),
                uploads = eventually("an upload", uploads) => uploads.unwrap(),
            }
            sleep(Duration::from_millis(after)).await;
            let killed = stage.node().kill("steward-sidecar", &members[0].uid);
            killed.unwrap();
            if name == "later" {
                kill_controllers(stage).await;
            }
            let (state, _) = asked.await.unwrap(); // it was too late to be killed, or it was not
            assert!(matches!(state, TaskState::Succeeded | TaskState::Failed));
        }
        let before = write_and_back_up(&etcd, &members).await;
        let all = json!({"verifyBackup": {"chains": "All"}});
        let (state, said) = etcd.ask("verify", all).await.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        etcd.lose_volume(&members[0]).await.unwrap();
        let is_new = |member: &_| !members.contains(member);
        assert_recovered(&etcd, &before, (1, is_new)).await;
    })
    .await;
}
