//! The conformance tests with a ConfigMap on a real API server, and API server failures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, DeleteParams, ObjectMeta};
use mainstay_coordination::{
    Backing, BackingError, ConfigMapBacking, CoordinationError, Coordinator,
};
use mainstay_testkit::ApiServer;
use tokio::time::{Instant, sleep};

use crate::conformance;
use crate::contention::{self, ContestConfig};

const NAME: &str = "etcd-main-coordination";

/// A separate document for each caller.
async fn document_in_config_map(server: &ApiServer) -> impl Fn() -> Arc<dyn Backing> + use<> {
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    move || Arc::new(ConfigMapBacking::new(client.clone(), &namespace, NAME))
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_has_one_holder_at_a_time() {
    let server = ApiServer::shared().await;
    let backings = document_in_config_map(&server).await;
    let rules = ContestConfig {
        ttl: Duration::from_secs(2),
        min_duration: Duration::ZERO,
        min_tenures: 8,
        timeout: Duration::from_mins(4),
    };
    contention::run_contest(backings, rules).await;
}

mod soak {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn lock_has_one_holder_at_a_time_for_a_minute() {
        let server = ApiServer::start().await;
        let backings = document_in_config_map(&server).await;
        let rules = ContestConfig {
            ttl: Duration::from_secs(2),
            min_duration: Duration::from_mins(1),
            min_tenures: 20,
            timeout: Duration::from_mins(4),
        };
        contention::run_contest(backings, rules).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn config_map_backing_passes_the_conformance_checks() {
    let server = ApiServer::shared().await;
    conformance::pins_are_never_lost(document_in_config_map(&server).await).await;
    // Run concurrently: each mostly waits, on its own document.
    tokio::join!(
        conformance::pin_of_crashed_reader_expires(document_in_config_map(&server).await),
        conformance::pin_belongs_to_its_holder(document_in_config_map(&server).await),
        conformance::unreadable_entry_is_not_overwritten(document_in_config_map(&server).await),
        conformance::restarted_holder_resumes_its_lock(document_in_config_map(&server).await),
        conformance::holder_raises_its_epoch(document_in_config_map(&server).await),
        conformance::work_stops_when_lock_is_lost(document_in_config_map(&server).await),
    );
}

fn config_maps(client: Client, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(client, namespace)
}

#[tokio::test]
async fn config_map_labels_are_set_and_survive_every_write() {
    let server = ApiServer::shared().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let labels = BTreeMap::from([(
        "app.kubernetes.io/part-of".to_owned(),
        "etcd-main".to_owned(),
    )]);
    let metadata = ObjectMeta {
        labels: Some(labels.clone()),
        ..ObjectMeta::default()
    };
    let backing = ConfigMapBacking::new(client.clone(), &namespace, NAME).with_metadata(metadata);
    let coordinator = Coordinator::new(Arc::new(backing));
    assert_eq!(
        coordinator.read_lock().await.unwrap(),
        None,
        "reading must not create the ConfigMap"
    );
    assert!(
        config_maps(client.clone(), &namespace)
            .get_opt(NAME)
            .await
            .unwrap()
            .is_none()
    );
    let held = conformance::acquire_lock(&coordinator, "a", Duration::from_mins(1)).await;
    held.renew().await.unwrap();
    let map = config_maps(client, &namespace).get(NAME).await.unwrap();
    assert_eq!(map.metadata.labels, Some(labels));
}

#[tokio::test]
async fn deleting_the_config_map_ends_the_lock() {
    let server = ApiServer::shared().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let backing = ConfigMapBacking::new(client.clone(), &namespace, NAME);
    let coordinator = Coordinator::new(Arc::new(backing));
    let held = conformance::acquire_lock(&coordinator, "a", Duration::from_mins(1)).await;
    config_maps(client, &namespace)
        .delete(NAME, &DeleteParams::default())
        .await
        .unwrap();
    let lost = held.fence().check().await;
    assert!(
        matches!(lost, Err(CoordinationError::LockLost { .. })),
        "{lost:?}"
    );
    assert!(held.renew().await.is_err());
    conformance::acquire_lock(&coordinator, "b", Duration::from_mins(1)).await;
}

#[tokio::test]
async fn holder_without_api_server_stops_before_earliest_takeover() {
    let mut server = ApiServer::start().await;
    let backings = document_in_config_map(&server).await;
    let ttl = Duration::from_secs(20);
    let coordinator = Coordinator::new(backings());
    // Others may acquire the lock one TTL after they observed it, which is not before the request.
    let earliest_takeover = Instant::now() + ttl;
    let held = conformance::acquire_lock(&coordinator, "a", ttl).await;
    server.stop();
    let stopped = held.run_while_held(sleep(Duration::from_mins(1))).await;
    assert!(
        matches!(stopped, Err(CoordinationError::LockLost { .. })),
        "{stopped:?}"
    );
    let until = held.valid_until();
    assert!(until < earliest_takeover, "{until:?} {earliest_takeover:?}");
    assert!(
        coordinator
            .try_acquire(&conformance::lock_request("b", ttl))
            .await
            .is_err()
    );
    server.restart().await;
    // No other process acquired it, so the holder may renew it.
    held.renew().await.unwrap();
    held.fence().check().await.unwrap();
}

#[tokio::test]
async fn missing_permission_is_named_in_the_error() {
    let server = ApiServer::shared().await;
    let (client, namespace) = (
        server.client_as("nobody").await,
        server.create_namespace().await,
    );
    let backing = ConfigMapBacking::new(client, &namespace, NAME);
    let refused = Coordinator::new(Arc::new(backing)).list_active_pins().await;
    let Err(CoordinationError::Backing(error @ BackingError::Read { .. })) = refused else {
        panic!("{refused:?}")
    };
    assert!(!error.is_transient());
    assert!(error.to_string().contains(NAME), "{error}");
}
