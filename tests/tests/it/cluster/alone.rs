//! Something all tests share is taken away. Tests of the cluster run one after the other.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use steward_store::{Environment, Provider, SnapStore, StoreConfig, UploadOptions};
use steward_tests::cluster::addresses::s3_url;
use steward_tests::cluster::member::content;
use steward_tests::cluster::{BUCKET, Component, NAMESPACE, S3_KEY_ID, S3_SECRET, eventually};

use super::members::{self, load};
use super::stage::{assert_kept, on_stage};

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_goes_and_comes_back_and_pods_do_not_notice() {
    on_stage("away", async |stage| {
        let members = members::start(stage, 1).await;
        let load = load(&members);
        let node = stage.node();
        node.stop(Component::ApiServer).await.unwrap();
        let maps = stage.api::<ConfigMap>();
        assert!(maps.list(&ListParams::default()).await.is_err());
        node.start(Component::ApiServer).await.unwrap();
        let back = async || maps.list(&ListParams::default()).await.ok();
        eventually("the API server", back).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
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

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_are_killed_again_and_again_still_make_three_members_of_one() {
    on_stage("killed", async |stage| {
        let etcd = stage.etcd(&stage.spec(1)).await;
        etcd.members(1).await.unwrap();
        etcd.settled().await.unwrap();
        let load = etcd.load().await.unwrap();
        etcd.change(json!({"replicas": 3})).await.unwrap();
        let client = stage.cluster.client();
        let controllers = Api::<Pod>::namespaced(client, NAMESPACE);
        let (at_once, all) = (
            DeleteParams::default().grace_period(0),
            ListParams::default(),
        );
        for pods in 2..=3 {
            let more = async || (etcd.pods().await.ok()?.len() >= pods).then_some(());
            eventually("one more pod", more).await.unwrap();
            controllers.delete_collection(&at_once, &all).await.unwrap();
        }
        let members = etcd.members(3).await.unwrap();
        etcd.settled().await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
    })
    .await;
}
