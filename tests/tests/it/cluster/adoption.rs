//! A cluster that etcd-druid made becomes ours, with its data, its quorum and its backup.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::ListParams;
use mainstay_crds::ops::TaskState;
use mainstay_ids::MemberId;
use mainstay_tests::cluster::Programs;
use mainstay_tests::cluster::image::etcd_versions;
use mainstay_tests::cluster::managed::Managed;
use mainstay_tests::cluster::member::{Content, Member, content, content_at};
use serde_json::json;

use super::bucket::Bucket;
use super::druid::{self, MEMBERS};
use super::midway::{kill_controllers, replaced};
use super::served::Absences;
use super::stage::{ETCD, Stage, assert_kept, on_stage, write_and_back_up};

/// Nobody acts on an Etcd that has it.
const SUSPENDED: &str = "druid.gardener.cloud/suspend-etcd-spec-reconcile";

/// The backup goes on where etcd-druid left it: what it stored is there, what came since follows it without a gap.
async fn assert_backup_goes_on(stage: &Stage, etcd: &Managed, theirs: &[String]) {
    let members = etcd.members(MEMBERS).await.unwrap();
    write_and_back_up(etcd, &members).await;
    let all = Bucket::open().snapshots(&prefix(stage)).await;
    let lost: Vec<_> = theirs.iter().filter(|key| !all.contains(key)).collect();
    assert!(lost.is_empty(), "stored before, and gone: {lost:?}");
    assert!(all.len() > theirs.len(), "nothing came since: {all:?}");
    let check = json!({"verifyBackup": {"chains": "All"}});
    let (ended, said) = etcd.ask("verify", check).await.unwrap();
    assert_eq!(ended, TaskState::Succeeded, "{said}");
}

/// Every member has what it had, as the member it was.
async fn assert_nothing_was_restored(
    (stage, etcd): (&Stage, &Managed),
    (before, written): (&[Member], &Content),
    ids: &[Option<MemberId>],
) {
    let members = etcd.members(MEMBERS).await.unwrap();
    assert!(members.iter().all(|member| !before.contains(member)));
    let then = content_at(&members, written.revision).await.unwrap();
    assert_eq!(then, *written);
    assert_eq!(identities(&members).await, ids, "the same members");
    let recovery = etcd.get().await.unwrap().status.unwrap().mainstay;
    let recovery = recovery.and_then(|mainstay| mainstay.recovery);
    assert!(recovery.is_none(), "{recovery:?}");
    let jobs = stage.api::<Job>();
    let jobs = jobs.list(&ListParams::default()).await.unwrap();
    let jobs: Vec<_> = jobs.iter().map(Job::name_any).collect();
    assert!(jobs.is_empty(), "{jobs:?}");
}

async fn identities(members: &[Member]) -> Vec<Option<MemberId>> {
    let mut ids = Vec::new();
    for member in members {
        ids.push(member.id().await);
    }
    ids
}

fn prefix(stage: &Stage) -> String {
    format!("{}/{ETCD}", stage.namespace)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_etcd_druid_goes_on_with_its_data_its_quorum_and_its_backup() {
    on_stage("adopt", async |stage| {
        let programs = Programs::of_etcd().unwrap();
        let version = etcd_versions(&programs).await.unwrap().pop().unwrap();
        let mut spec = stage.spec(3);
        spec["backup"]["garbageCollectionPeriod"] = "12h".into(); // nothing goes meanwhile
        let etcd = stage.suspended(&spec, SUSPENDED).await;
        let owner = etcd.get().await.unwrap();
        let set = druid::make(stage, &owner, &version).await;
        let before = etcd.members(MEMBERS).await.unwrap();
        let written = write_and_back_up(&etcd, &before).await;
        let ids = identities(&before).await;
        let theirs = Bucket::open().snapshots(&prefix(stage)).await;
        assert!(
            theirs.iter().any(|key| key.contains("/Full-")),
            "{theirs:?}"
        );

        let away = Absences::watch(stage, &etcd).await;
        etcd.annotate(SUSPENDED, None).await.unwrap();
        let load = etcd.load().await.unwrap();
        replaced(&etcd, &before, 1).await;
        kill_controllers(stage).await;
        let is_new = |member: &_| !before.contains(member);
        let members = etcd.members_that(MEMBERS, is_new).await.unwrap();
        etcd.settled().await.unwrap();
        load.has_written(20).await.unwrap();
        let more = load.stop().await.unwrap();
        assert_kept(&more, &content(&members).await.unwrap());
        away.assert_served(MEMBERS, &more).await;
        assert_nothing_was_restored((stage, &etcd), (&before, &written), &ids).await;
        let now = stage.api::<StatefulSet>().get(ETCD).await.unwrap();
        assert_eq!(now.uid(), set.uid(), "the same StatefulSet");
        let pod = now.spec.unwrap().template.spec.unwrap();
        assert_eq!(
            pod.share_process_namespace, None,
            "what only etcd-druid set is gone"
        );
        assert_backup_goes_on(stage, &etcd, &theirs).await;
    })
    .await;
}
