//! The backup of an Etcd: rehearsed, folded, looked at, copied, though controllers are killed.

use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::managed::{self, Managed};
use mainstay_tests::cluster::member::content;
use serde_json::json;

use super::midway::Jobs;
use super::stage::{assert_kept, assert_recovered, on_stage, write_and_back_up};

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_was_rehearsed_folded_and_copied_is_a_new_cluster_elsewhere() {
    on_stage("copy", async |stage| {
        let mut spec = stage.spec(1);
        spec["mainstay"] = json!({"restoreDrill": {"schedule": "* * * * *"}});
        let jobs = Jobs::watch(stage).await;
        let etcd = stage.etcd(&spec).await;
        let members = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let before = write_and_back_up(&etcd, &members).await;
        // Before anything is folded: that leaves less history in the backup than this etcd has.
        let drill = etcd.is_rehearsed(before.revision).await.unwrap();
        assert!(drill.succeeded, "{}", drill.message);
        let load = etcd.load().await.unwrap();
        let killed = jobs.kill_controllers_at(stage, "main-compactor");
        let (folded, ()) = tokio::join!(etcd.ask("fold", json!({"compact": {}})), killed);
        let (state, said) = folded.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        let all = json!({"verifyBackup": {"chains": "All"}});
        let (state, said) = etcd.ask("verify", all).await.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        load.has_written(50).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
        let before = write_and_back_up(&etcd, &members).await;
        let spec = managed::spec(&stage.namespace, "copy", 1);
        let prefix = spec["backup"]["store"]["prefix"].as_str().unwrap();
        let killed = jobs.kill_controllers_at(stage, "copy-worker");
        let (copied, ()) = tokio::join!(etcd.copy_backup("copy", prefix), killed);
        copied.unwrap();

        let client = stage.cluster.client();
        let copy = Managed::create(client, &stage.namespace, "copy", &spec).await;
        assert_recovered(&copy.unwrap(), &before, (1, |_| true)).await;
        let still = content(&members).await.unwrap();
        assert_eq!(still, before, "the first one does not notice");
    })
    .await;
}
