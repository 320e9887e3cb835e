//! A sidecar is killed during an upload.

use std::pin::pin;

use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::eventually;
use rand::Rng as _;
use serde_json::json;

use super::super::harness::{
    TestNamespace, assert_recovered, with_local_namespace, write_and_back_up,
};
use super::super::interruptions::kill_controllers;

/// When a sidecar is killed.
pub(super) struct KillPoint {
    /// Name of the snapshot task.
    pub(super) name: &'static str,
    /// Bytes of the upload that pass before.
    pub(super) after_bytes: u64,
    /// Whether controllers are killed as well.
    pub(super) with_controllers: bool,
}

/// Kills a sidecar during an upload, at each of the moments, and verifies the backup.
pub(super) async fn kill_while_uploading(stage: &TestNamespace, moments: &[KillPoint]) {
    let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
    let members = etcd.wait_for_members(1).await.unwrap();
    etcd.wait_until_settled().await.unwrap();
    let mut client = members[0].client().await.unwrap();
    let mut noise = vec![0; 512 << 10];
    for _ in 0..64 {
        rand::rng().fill(&mut noise[..]);
        client.put("/large", noise.clone(), None).await.unwrap();
    }
    for moment in moments {
        etcd.wait_until_settled().await.unwrap();
        // Deltas are stored first, so that the bytes that pass are those of the full snapshot.
        write_and_back_up(&etcd, &members).await;
        let of = members[0].address;
        let stall = stage
            .local_node()
            .stall_uploads(of, moment.after_bytes)
            .await
            .unwrap();
        let task = json!({"onDemandSnapshot": {"type": "full"}});
        let mut asked = pin!(etcd.run_ops_task(moment.name, task));
        let hangs = async || {
            let status = members[0].sidecar_status().await?;
            let is_under_way = status["fullUnderWay"] == true;
            (is_under_way && stall.has_dropped_packets().await.ok()?).then_some(())
        };
        tokio::select! {
            ended = &mut asked => panic!("{}: the task ended although the upload hangs: {ended:?}", moment.name),
            hangs = eventually("the upload to hang", hangs) => hangs.unwrap(),
        }
        stage
            .local_node()
            .kill_program("mainstay-sidecar", &members[0].uid)
            .unwrap();
        if moment.with_controllers {
            kill_controllers(stage).await;
        }
        stall.heal().await.unwrap();
        let (ended, _) = asked.await.unwrap(); // either outcome is fine: the next sidecar may or may not have been asked again
        assert!(matches!(ended, TaskState::Succeeded | TaskState::Failed));
    }
    let before = write_and_back_up(&etcd, &members).await;
    let all = json!({"verifyBackup": {"chains": "All"}});
    let (ended, said) = etcd.run_ops_task("verify", all).await.unwrap();
    assert_eq!(ended, TaskState::Succeeded, "{said}");
    etcd.delete_volume(&members[0]).await.unwrap();
    let is_new = |member: &_| !members.contains(member);
    assert_recovered(&etcd, &before, (1, is_new)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_killed_during_an_upload_leaves_a_valid_backup() {
    with_local_namespace("upload", async |stage| {
        let moment = KillPoint {
            name: "middle",
            after_bytes: 10 << 20,
            with_controllers: false,
        };
        Box::pin(kill_while_uploading(stage, &[moment])).await;
    })
    .await;
}
