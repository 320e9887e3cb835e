//! Something all tests share is taken away. Tests of the cluster run one after the other.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use steward_crds::{ConditionStatus, ConditionType};
use steward_store::{Environment, Provider, SnapStore, StoreConfig, UploadOptions};
use steward_tests::cluster::addresses::s3_url;
use steward_tests::cluster::managed::{Managed, condition};
use steward_tests::cluster::member::{Member, content};
use steward_tests::cluster::timeline::{self, Timeline};
use steward_tests::cluster::{BUCKET, Component, NAMESPACE, S3_KEY_ID, S3_SECRET, eventually};

use tokio::time::{Instant, sleep_until};

use super::stage::{Stage, assert_kept, assert_recovered, on_stage, write_and_back_up};

/// For how long the store is away.
const AWAY: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_restarts_in_the_middle_delays_a_third_member_and_stops_no_write() {
    on_stage("away", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let first = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        etcd.change(json!({"replicas": 3})).await.unwrap();
        pods(&etcd, 2).await;
        let node = stage.node();
        node.stop(Component::ApiServer).await.unwrap();
        assert!(etcd.get().await.is_err());
        let stored = async || first[0].sidecar().await?["lastDelta"]["lastRevision"].as_i64();
        let then = eventually("a delta", stored).await.unwrap();
        load.has_written(100).await.unwrap();
        let later = async || stored().await.filter(|now| *now > then);
        eventually("a later delta, without the API server", later)
            .await
            .unwrap();
        node.start(Component::ApiServer).await.unwrap();
        let back = async || etcd.get().await.ok();
        eventually("the API server", back).await.unwrap();
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_for_minutes_is_told_and_caught_up_with() {
    on_stage("outage", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let members = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        write_and_back_up(&etcd, &members).await;
        let load = etcd.load().await.unwrap();
        let mut timeline = Timeline::start("the backup store", "it is away");
        let away = Instant::now();
        stage.node().stop(Component::Store).await.unwrap();
        let is_told = async || {
            let told = condition(&etcd.get().await.ok()?, &ConditionType::BackupReady)?;
            (told.status != ConditionStatus::True).then_some(())
        };
        eventually("a backup that is told to be late", is_told)
            .await
            .unwrap();
        timeline.mark("the Etcd says that its backup is late");
        sleep_until(away + AWAY).await;
        stage.node().start(Component::Store).await.unwrap();
        timeline.mark("the store is back");
        load.has_written(20).await.unwrap();
        let written = load.stop().await.unwrap();
        let before = content(&members).await.unwrap();
        assert_kept(&written, &before);
        etcd.is_backed_up(before.revision).await.unwrap();
        timeline.mark("every write is in the backup");
        timeline.keep(&timeline::directory().unwrap()).unwrap();

        etcd.lose_volume(&members[0]).await.unwrap();
        let is_new = |member: &_| !members.contains(member);
        assert_recovered(&etcd, &before, (1, is_new)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_s3_server_has_its_objects_when_it_comes_back() {
    on_stage("store", async |stage| {
        let fields = [
            ("region", "us-east-1"),
            ("accessKeyID", S3_KEY_ID),
            ("secretAccessKey", S3_SECRET),
        ];
        let directory = tempfile::tempdir().unwrap();
        for (name, value) in fields {
            std::fs::write(directory.path().join(name), value).unwrap();
        }
        let credentials = directory.path().to_str().unwrap();
        let environment = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", credentials)]);
        let config = StoreConfig {
            endpoint: Some(s3_url().parse().unwrap()),
            ..StoreConfig::new(Provider::S3, BUCKET)
        };
        let store = SnapStore::open(&config, &environment).unwrap();
        let key = format!("{}/object", stage.namespace);
        let mut upload = store.upload(&key, UploadOptions::create_only()).unwrap();
        upload.write("kept".into()).await.unwrap();
        upload.finish().await.unwrap();

        let node = stage.node();
        node.stop(Component::Store).await.unwrap();
        node.start(Component::Store).await.unwrap();
        let object = eventually("the object", async || store.head(&key).await.ok());
        let object = object.await.unwrap();
        assert_eq!(object.size, 4);
    })
    .await;
}

/// Waits until there are so many pods.
async fn pods(etcd: &Managed, count: usize) {
    let more = async || (etcd.pods().await.ok()?.len() >= count).then_some(());
    eventually(&format!("{count} pods"), more).await.unwrap();
}

/// Kills every controller there is; others take their place.
async fn kill_controllers(stage: &Stage) {
    let controllers = Api::<Pod>::namespaced(stage.cluster.client(), NAMESPACE);
    let at_once = DeleteParams::default().grace_period(0);
    let all = ListParams::default();
    controllers.delete_collection(&at_once, &all).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_again_and_again_still_make_three_members_of_one() {
    on_stage("killed", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        etcd.change(json!({"replicas": 3})).await.unwrap();
        for count in 2..=3 {
            pods(&etcd, count).await;
            kill_controllers(stage).await;
        }
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_in_the_middle_still_roll_replace_and_shrink() {
    on_stage("midway", async |stage| {
        let etcd = stage.etcd(&stage.spec(3)).await;
        let first = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();

        etcd.change(json!({"annotations": {"rolled": "once"}}))
            .await
            .unwrap();
        replaced(&etcd, &first, 1).await;
        kill_controllers(stage).await;
        let is_new = |member: &_| !first.contains(member);
        let rolled = etcd.members_that(3, is_new).await.unwrap();
        etcd.settled().await.unwrap();

        let lost = &rolled[2];
        etcd.lose_volume(lost).await.unwrap();
        replaced(&etcd, std::slice::from_ref(lost), 1).await;
        kill_controllers(stage).await;
        let is_another = |member: &_| *member != *lost;
        etcd.members_that(3, is_another).await.unwrap();
        etcd.settled().await.unwrap();

        etcd.change(json!({"replicas": 1})).await.unwrap();
        let fewer = async || (etcd.pods().await.ok()?.len() < 3).then_some(());
        eventually("fewer pods", fewer).await.unwrap();
        kill_controllers(stage).await;
        etcd.settled().await.unwrap();
        let remaining = etcd.members(1).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&remaining).await.unwrap());
    })
    .await;
}

/// Waits until so many of these members have other pods.
async fn replaced(etcd: &Managed, members: &[Member], count: usize) {
    let is_done = async || {
        let pods = etcd.pods().await.ok()?;
        let uids: Vec<_> = pods.iter().filter_map(ResourceExt::uid).collect();
        let gone = members.iter().filter(|member| !uids.contains(&member.uid));
        (gone.count() >= count).then_some(())
    };
    let what = format!("{count} replaced members");
    eventually(&what, is_done).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_while_they_restore_still_restore() {
    on_stage("resumed", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        let members = etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let before = write_and_back_up(&etcd, &members).await;
        etcd.lose_volume(&members[0]).await.unwrap();
        etcd.needs_recovery().await.unwrap();
        kill_controllers(stage).await;
        let jobs = stage.api::<Job>();
        let launched = async || {
            let jobs = jobs.list(&ListParams::default()).await.ok()?.items;
            (!jobs.is_empty()).then_some(())
        };
        eventually("a Job that restores", launched).await.unwrap();
        kill_controllers(stage).await;
        let is_new = |member: &_| !members.contains(member);
        assert_recovered(&etcd, &before, (1, is_new)).await;
    })
    .await;
}
