//! The backup of an Etcd is drilled, compacted, verified and copied while controllers are killed.

use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::managed_etcd::{self, ManagedEtcd};
use mainstay_tests::cluster::member::read_key_space;
use serde_json::json;

use super::harness::{assert_no_write_lost, assert_recovered, with_namespace, write_and_back_up};
use super::interruptions::JobWatch;

#[tokio::test(flavor = "multi_thread")]
async fn drilled_compacted_and_copied_backup_starts_a_new_cluster() {
    with_namespace("copy", async |stage| {
        let mut spec = stage.etcd_spec(1);
        spec["mainstay"] = json!({"restoreDrill": {"schedule": "* * * * *"}});
        let jobs = JobWatch::start(stage).await;
        let etcd = stage.create_etcd(&spec).await;
        let members = etcd.wait_for_members(1).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let before = write_and_back_up(&etcd, &members).await;
        // Before the compaction: afterwards the backup has less history than etcd, and the hashes differ.
        let drill = etcd.wait_for_drill(before.revision).await.unwrap();
        assert!(drill.succeeded, "{}", drill.message);
        let load = etcd.start_load().await.unwrap();
        let killed = jobs.kill_controllers_on_job(stage, "main-compactor");
        let (folded, ()) =
            tokio::join!(etcd.run_ops_task("compact", json!({"compact": {}})), killed);
        let (state, said) = folded.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        let all = json!({"verifyBackup": {"chains": "All"}});
        let (state, said) = etcd.run_ops_task("verify", all).await.unwrap();
        assert_eq!(state, TaskState::Succeeded, "{said}");
        load.wait_for_writes(50).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
        let before = write_and_back_up(&etcd, &members).await;
        let spec = managed_etcd::etcd_spec(&stage.namespace, "copy", 1);
        let prefix = spec["backup"]["store"]["prefix"].as_str().unwrap();
        let killed = jobs.kill_controllers_on_job(stage, "copy-worker");
        let (copied, ()) = tokio::join!(etcd.copy_backup("copy", prefix), killed);
        copied.unwrap();

        let client = stage.cluster.client();
        let copy = ManagedEtcd::create(client, &stage.namespace, "copy", &spec).await;
        assert_recovered(&copy.unwrap(), &before, (1, |_| true)).await;
        let still = read_key_space(&members).await.unwrap();
        assert_eq!(still, before, "the copied Etcd changed");
    })
    .await;
}
