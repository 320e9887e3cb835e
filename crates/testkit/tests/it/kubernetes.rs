//! API servers start, serve, stop and restart.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};
use mainstay_testkit::ApiServer;

fn config_map(text: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some("it".to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("text".to_owned(), text.to_owned())])),
        ..ConfigMap::default()
    }
}

#[tokio::test]
async fn objects_survive_an_api_server_restart() {
    let mut server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let maps = Api::<ConfigMap>::namespaced(client, &namespace);
    maps.create(&PostParams::default(), &config_map("kept"))
        .await
        .unwrap();
    server.stop();
    assert!(maps.get("it").await.is_err());
    server.restart().await;
    assert_eq!(maps.get("it").await.unwrap().data, config_map("kept").data);
}

#[tokio::test]
async fn user_without_permissions_is_refused() {
    let server = ApiServer::start().await;
    let namespace = server.create_namespace().await;
    let maps = Api::<ConfigMap>::namespaced(server.client_as("nobody").await, &namespace);
    let refused = maps.create(&PostParams::default(), &config_map("no")).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
}

#[tokio::test]
async fn two_api_servers_share_nothing() {
    let (first, second) = tokio::join!(ApiServer::start(), ApiServer::start());
    assert_ne!(first.url(), second.url());
    let (one, two) = (
        first.create_namespace().await,
        second.create_namespace().await,
    );
    let maps = Api::<ConfigMap>::namespaced(first.client().await, &one);
    maps.create(&PostParams::default(), &config_map("first"))
        .await
        .unwrap();
    let others = Api::<ConfigMap>::namespaced(second.client().await, &two);
    assert!(others.get_opt("it").await.unwrap().is_none());
}

#[tokio::test]
async fn controllers_create_the_default_service_account() {
    let server = ApiServer::start().await.with_controllers().await;
    let namespace = server.create_namespace().await;
    let accounts = Api::<ServiceAccount>::namespaced(server.client().await, &namespace);
    while accounts.get_opt("default").await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
