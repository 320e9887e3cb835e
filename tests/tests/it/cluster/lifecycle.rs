//! The lifecycle of an Etcd under load: scaling, upgrades, hibernation, deletion, with all programs as installed.
//! Controllers are killed in between; more often in `soak`.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::ListParams;
use mainstay_crds::etcd::MemberRole;
use mainstay_crds::{ConditionStatus, ConditionType};
use mainstay_tests::cluster::image::{ETCD_IMAGE as IMAGE, read_etcd_versions};
use mainstay_tests::cluster::managed_etcd::find_condition;
use mainstay_tests::cluster::member::{read_key_space, read_key_space_at};
use mainstay_tests::cluster::timeline::{self, Timeline};
use mainstay_tests::cluster::{Programs, eventually};
use serde_json::json;

use super::availability::AbsenceWatch;
use super::bucket::BackupBucket;
use super::harness::{
    ETCD_NAME, LONGEST_GAP_LABEL, TestNamespace, assert_no_write_lost, with_namespace,
    write_and_back_up,
};
use super::interruptions::{kill_controllers, wait_for_pods, wait_until_replaced};

/// Entries between two raft snapshots of a member.
const RAFT_SNAPSHOT_ENTRIES: u64 = 50;

#[tokio::test(flavor = "multi_thread")]
async fn scaling_from_one_to_five_members_and_back_loses_no_write() {
    with_namespace("scale", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
        etcd.wait_for_members(1).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        let load = etcd.start_load().await.unwrap();
        for (step, count) in [3, 5, 3, 1].into_iter().enumerate() {
            etcd.patch_spec(json!({"replicas": count})).await.unwrap();
            if step == 0 {
                wait_for_pods(&etcd, 2).await; // the second member joins, and a third one follows
                kill_controllers(stage).await;
            }
            etcd.wait_until_settled().await.unwrap();
            assert_eq!(etcd.wait_for_members(count).await.unwrap().len(), count);
            let is_told = async || {
                let reported = etcd.get().await.ok()?.status?.members?;
                let roles: Vec<_> = reported
                    .into_iter()
                    .filter_map(|member| member.role)
                    .collect();
                let leaders = roles.iter().filter(|role| **role == MemberRole::Leader);
                let has_one = leaders.count() == 1 && !roles.contains(&MemberRole::Learner);
                (roles.len() == count && has_one).then_some(())
            };
            let what = format!("{count} members in the status, with one leader and no learner");
            eventually(&what, is_told).await.unwrap();
        }
        load.wait_for_writes(20).await.unwrap();
        let written = load.stop().await.unwrap();
        let members = etcd.wait_for_members(1).await.unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_of_three_encrypted_members_never_lose_quorum() {
    with_namespace("upgrade", async |stage| {
        let programs = Programs::find_etcds().unwrap();
        let every = programs.check_all_etcds();
        every.unwrap_or_else(|missing| panic!("the upgrade test needs every version: {missing}"));
        let versions = newest_of_each_minor(read_etcd_versions(&programs).await.unwrap());
        let (oldest, newer) = versions.split_first().expect("versions of etcd");
        let mut spec = stage.etcd_spec(3);
        spec["etcd"]["image"] = json!(format!("{IMAGE}:{oldest}"));
        // The health check of etcd 3.4 writes v2 requests to the log. etcd 3.6 stops when it reads one, so members of 3.5
        // must have written a raft snapshot after them.
        spec["etcd"]["snapshotCount"] = json!(RAFT_SNAPSHOT_ENTRIES);
        let etcd = stage.create_encrypted_etcd(spec).await;
        let mut members = etcd.wait_for_members(3).await.unwrap();
        let settled = etcd.wait_until_settled().await.unwrap();
        let ready = find_condition(&settled, &ConditionType::Ready).unwrap();

        let away = AbsenceWatch::start(stage, &etcd).await;
        let load = etcd.start_load().await.unwrap();
        let what = "upgrades of three members, one after the other";
        let mut timeline = Timeline::start(what, "the image in the spec changes");
        for version in newer {
            let image = json!({"etcd": {"image": format!("{IMAGE}:{version}")}});
            etcd.patch_spec(image).await.unwrap();
            wait_until_replaced(&etcd, &members, 1).await;
            kill_controllers(stage).await;
            let is_new = |member: &_| !members.contains(member);
            members = etcd.wait_for_members_where(3, is_new).await.unwrap();
            let settled = etcd.wait_until_settled().await.unwrap();
            for member in &members {
                let status = async || member.client().await.ok()?.status().await.ok();
                let status = eventually("the status of a member", status).await.unwrap();
                assert_eq!(status.version(), version, "{}", member.pod);
            }
            let still = find_condition(&settled, &ConditionType::Ready).unwrap();
            assert_eq!(still.status, ConditionStatus::True);
            assert_eq!(still.last_transition_time, ready.last_transition_time);
            load.wait_for_writes(RAFT_SNAPSHOT_ENTRIES + 1)
                .await
                .unwrap();
        }
        timeline.record_event(
            "all members run the newest version; the controllers were killed during each upgrade",
        );
        load.wait_for_writes(20).await.unwrap();
        let written = load.stop().await.unwrap();
        timeline.record_event_after(written.longest_gap(), LONGEST_GAP_LABEL);
        timeline.save(&timeline::timelines_dir().unwrap()).unwrap();
        away.assert_served(3 * newer.len(), &written).await;
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
    })
    .await;
}

/// Versions, oldest first, without those that a later one of the same minor version follows.
fn newest_of_each_minor(versions: Vec<String>) -> Vec<String> {
    let mut newest: Vec<String> = Vec::new();
    let minor = |version: &str| version.rsplit_once('.').map(|(minor, _)| minor.to_owned());
    for version in versions {
        newest.pop_if(|last| minor(last) == minor(&version));
        newest.push(version);
    }
    newest
}

/// When controllers are killed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillSchedule {
    /// While the cluster wakes up.
    OnWakeup,
    /// While the cluster is created, hibernated and woken up.
    EveryStep,
}

/// Creates a cluster, hibernates it, and wakes it up.
pub(crate) async fn hibernate_and_wake(stage: &TestNamespace, kills: KillSchedule) {
    let etcd = stage.create_etcd(&stage.etcd_spec(3)).await;
    if kills == KillSchedule::EveryStep {
        wait_for_pods(&etcd, 1).await;
        kill_controllers(stage).await;
    }
    etcd.wait_for_members(3).await.unwrap();
    etcd.wait_until_settled().await.unwrap();
    let load = etcd.start_load().await.unwrap();
    load.wait_for_writes(100).await.unwrap();
    let written = load.stop().await.unwrap();
    let before = read_key_space(&etcd.wait_for_members(3).await.unwrap())
        .await
        .unwrap();
    assert_no_write_lost(&written, &before);

    etcd.patch_spec(json!({"replicas": 0})).await.unwrap();
    if kills == KillSchedule::EveryStep {
        kill_controllers(stage).await;
    }
    eventually("all pods to be deleted", async || {
        etcd.list_pods().await.ok()?.is_empty().then_some(())
    })
    .await
    .unwrap();
    etcd.wait_until_settled().await.unwrap();
    let claims = stage.api::<PersistentVolumeClaim>();
    let claims = claims.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(claims.len(), 3, "PVCs must be kept");

    etcd.patch_spec(json!({"replicas": 3})).await.unwrap();
    wait_for_pods(&etcd, 1).await;
    kill_controllers(stage).await;
    let members = etcd.wait_for_members(3).await.unwrap();
    etcd.wait_until_settled().await.unwrap();
    let after = read_key_space_at(&members, before.revision).await.unwrap();
    assert_eq!(after, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn hibernated_cluster_wakes_up_with_its_data() {
    with_namespace("hibernate", async |stage| {
        hibernate_and_wake(stage, KillSchedule::OnWakeup).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_etcd_leaves_only_its_volumes_and_its_backup() {
    with_namespace("delete", async |stage| {
        let etcd = stage.create_etcd(&stage.etcd_spec(1)).await;
        let members = etcd.wait_for_members(1).await.unwrap();
        etcd.wait_until_settled().await.unwrap();
        write_and_back_up(&etcd, &members).await;
        let prefix = format!("{}/{ETCD_NAME}", stage.namespace);
        let backup = BackupBucket::open().list_snapshots(&prefix).await;
        assert!(!backup.is_empty());
        let is_going = async || {
            let meta = etcd.get().await.ok().map(|etcd| etcd.metadata);
            let is_there = meta.is_some_and(|meta| meta.deletion_timestamp.is_none());
            (!is_there).then_some(())
        };
        let killed = async {
            eventually("an Etcd that is being deleted", is_going)
                .await
                .unwrap();
            kill_controllers(stage).await;
        };
        let (deleted, ()) = tokio::join!(etcd.delete(), killed);
        deleted.unwrap();
        let ours = ListParams::default().labels("app.kubernetes.io/managed-by=etcd-druid");
        eventually("all objects to be deleted", async || {
            let sets = stage.api::<StatefulSet>().list(&ours).await.ok()?.items;
            let services = stage.api::<Service>().list(&ours).await.ok()?.items;
            let maps = stage.api::<ConfigMap>().list(&ours).await.ok()?.items;
            let leases = stage.api::<Lease>().list(&ours).await.ok()?.items;
            let accounts = stage.api::<ServiceAccount>().list(&ours).await.ok()?.items;
            let roles = stage.api::<Role>().list(&ours).await.ok()?.items;
            let bindings = stage.api::<RoleBinding>().list(&ours).await.ok()?.items;
            let jobs = stage.api::<Job>().list(&ours).await.ok()?.items;
            let pods = stage.api::<Pod>().list(&ours).await.ok()?.items;
            let rights = accounts.len() + roles.len() + bindings.len();
            let runs = sets.len() + jobs.len() + pods.len();
            let left = rights + runs + services.len() + maps.len() + leases.len();
            (left == 0).then_some(())
        })
        .await
        .unwrap();
        let claims = stage.api::<PersistentVolumeClaim>();
        let claims = claims.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(claims.len(), 1, "PVCs must be kept");
        let kept = BackupBucket::open().list_snapshots(&prefix).await;
        let is_gone = |key: &&String| !kept.contains(key);
        let gone: Vec<_> = backup.iter().filter(is_gone).collect();
        assert!(gone.is_empty(), "{gone:?}");
    })
    .await;
}
