//! The controller adopts a cluster created by etcd-druid and keeps its data, quorum and backup.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::ListParams;
use mainstay_crds::ops::TaskState;
use mainstay_ids::MemberId;
use mainstay_tests::cluster::Programs;
use mainstay_tests::cluster::image::read_etcd_versions;
use mainstay_tests::cluster::managed_etcd::ManagedEtcd;
use mainstay_tests::cluster::member::{
    KeySpaceContent, MemberPod, read_key_space, read_key_space_at,
};
use serde_json::json;

use super::availability::AbsenceWatch;
use super::bucket::BackupBucket;
use super::druid::{self, MEMBERS};
use super::harness::{
    ETCD_NAME, TestNamespace, assert_no_write_lost, with_baseline_namespace, write_and_back_up,
};
use super::interruptions::{kill_controllers, wait_until_replaced};

/// Suspends the reconciliation of an Etcd.
const SUSPEND_ANNOTATION: &str = "druid.gardener.cloud/suspend-etcd-spec-reconcile";

/// The backup continues: the objects from before are present, and newer ones follow without a gap.
async fn assert_backup_continues(stage: &TestNamespace, etcd: &ManagedEtcd, theirs: &[String]) {
    let members = etcd.wait_for_members(MEMBERS).await.unwrap();
    write_and_back_up(etcd, &members).await;
    let all = BackupBucket::open()
        .list_snapshots(&backup_prefix(stage))
        .await;
    let lost: Vec<_> = theirs.iter().filter(|key| !all.contains(key)).collect();
    assert!(lost.is_empty(), "objects from before are missing: {lost:?}");
    assert!(all.len() > theirs.len(), "no new object: {all:?}");
    let check = json!({"verifyBackup": {"chains": "All"}});
    let (ended, said) = etcd.run_ops_task("verify", check).await.unwrap();
    assert_eq!(ended, TaskState::Succeeded, "{said}");
}

/// Every member keeps its data and its ID.
async fn assert_not_restored(
    (stage, etcd): (&TestNamespace, &ManagedEtcd),
    (before, written): (&[MemberPod], &KeySpaceContent),
    ids: &[Option<MemberId>],
) {
    let members = etcd.wait_for_members(MEMBERS).await.unwrap();
    assert!(members.iter().all(|member| !before.contains(member)));
    let then = read_key_space_at(&members, written.revision).await.unwrap();
    assert_eq!(then, *written);
    assert_eq!(member_ids(&members).await, ids, "member IDs changed");
    let recovery = etcd.get().await.unwrap().status.unwrap().mainstay;
    let recovery = recovery.and_then(|mainstay| mainstay.recovery);
    assert!(recovery.is_none(), "{recovery:?}");
    let jobs = stage.api::<Job>();
    let jobs = jobs.list(&ListParams::default()).await.unwrap();
    let jobs: Vec<_> = jobs.iter().map(Job::name_any).collect();
    assert!(jobs.is_empty(), "{jobs:?}");
}

async fn member_ids(members: &[MemberPod]) -> Vec<Option<MemberId>> {
    let mut ids = Vec::new();
    for member in members {
        ids.push(member.member_id().await);
    }
    ids
}

fn backup_prefix(stage: &TestNamespace) -> String {
    format!("{}/{ETCD_NAME}", stage.namespace)
}

#[tokio::test(flavor = "multi_thread")]
async fn adopted_etcd_druid_cluster_keeps_data_quorum_and_backup() {
    with_baseline_namespace("adopt", async |stage| {
        let programs = Programs::find_etcds().unwrap();
        let version = read_etcd_versions(&programs).await.unwrap().pop().unwrap();
        let mut spec = stage.etcd_spec(3);
        spec["backup"]["garbageCollectionPeriod"] = "12h".into(); // no garbage collection during the test
        let etcd = stage.create_suspended_etcd(&spec, SUSPEND_ANNOTATION).await;
        let owner = etcd.get().await.unwrap();
        let set = druid::create_druid_etcd(stage, &owner, &version).await;
        let before = etcd.wait_for_members(MEMBERS).await.unwrap();
        let written = write_and_back_up(&etcd, &before).await;
        let ids = member_ids(&before).await;
        let theirs = BackupBucket::open()
            .list_snapshots(&backup_prefix(stage))
            .await;
        assert!(
            theirs.iter().any(|key| key.contains("/Full-")),
            "{theirs:?}"
        );

        let away = AbsenceWatch::start(stage, &etcd).await;
        etcd.annotate(SUSPEND_ANNOTATION, None).await.unwrap();
        let load = etcd.start_load().await.unwrap();
        wait_until_replaced(&etcd, &before, 1).await;
        kill_controllers(stage).await;
        let is_new = |member: &_| !before.contains(member);
        let members = etcd.wait_for_members_where(MEMBERS, is_new).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        load.wait_for_writes(20).await.unwrap();
        let more = load.stop().await.unwrap();
        assert_no_write_lost(&more, &read_key_space(&members).await.unwrap());
        away.assert_served(MEMBERS, &more).await;
        assert_not_restored((stage, &etcd), (&before, &written), &ids).await;
        let now = stage.api::<StatefulSet>().get(ETCD_NAME).await.unwrap();
        assert_eq!(now.uid(), set.uid(), "the StatefulSet was recreated");
        let pod = now.spec.unwrap().template.spec.unwrap();
        assert_eq!(
            pod.share_process_namespace, None,
            "a field that only etcd-druid set was not removed"
        );
        assert_backup_continues(stage, &etcd, &theirs).await;
    })
    .await;
}
