//! Restores a cluster to an earlier revision. Recovery of lost data: `killed`, `soak::recoveries`.

use mainstay_crds::ops::TaskState;
use mainstay_tests::cluster::timeline::{self, Timeline};
use serde_json::json;

use super::harness::{TestNamespace, assert_recovered, with_namespace, write_and_back_up};

/// Deletes every key of an Etcd and restores the revision before, twice.
pub(crate) async fn undo_delete(stage: &TestNamespace, count: usize) {
    let etcd = stage
        .create_etcd(&stage.etcd_spec(i32::try_from(count).unwrap()))
        .await;
    let members = etcd.wait_for_members(count).await.unwrap();
    etcd.wait_until_settled().await.unwrap();
    let before = write_and_back_up(&etcd, &members).await;
    let mut client = members[0].client().await.unwrap();
    let everything = etcd_client::DeleteOptions::new().with_all_keys();
    let deleted = client.delete("", Some(everything)).await.unwrap();
    assert!(deleted.deleted() >= 200);

    let mut timeline = Timeline::start("a bad delete", "a user requests the revision before");
    let task = json!({"restore": {"toRevision": before.revision.0}});
    let (ended, said) = etcd.run_ops_task("undo", task).await.unwrap();
    assert_eq!(ended, TaskState::Succeeded, "{said}");
    let is_new = |member: &_| !members.contains(member);
    assert_recovered(&etcd, &before, (count, is_new)).await;
    timeline.record_event("all members are ready with all keys");
    timeline.save(&timeline::timelines_dir().unwrap()).unwrap();

    // Restores a state from before the first restore. Backups continue after it.
    let members = etcd.wait_for_members(count).await.unwrap();
    let task = json!({"restore": {"toRevision": before.revision.0}});
    let (ended, said) = etcd.run_ops_task("undo-again", task).await.unwrap();
    assert_eq!(ended, TaskState::Succeeded, "{said}");
    let is_new = |member: &_| !members.contains(member);
    assert_recovered(&etcd, &before, (count, is_new)).await;
    etcd.wait_until_settled().await.unwrap();
    let task = json!({"onDemandSnapshot": {"type": "full"}});
    let (ended, said) = etcd.run_ops_task("backed-up", task).await.unwrap();
    assert_eq!(ended, TaskState::Succeeded, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn accidental_delete_is_undone_by_a_restore_to_the_revision_before() {
    with_namespace("undo", async |stage| undo_delete(stage, 1).await).await;
}
