//! The promises over a ConfigMap of a real API server, and what only an API server can do to them.

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
use crate::contention::{self, Rules};

const NAME: &str = "etcd-main-coordination";

/// A document of its own for each caller.
async fn document(server: &ApiServer) -> impl Fn() -> Arc<dyn Backing> + use<> {
    let (client, namespace) = (server.client().await, server.namespace().await);
    move || Arc::new(ConfigMapBacking::new(client.clone(), &namespace, NAME))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_party_at_a_time() {
    let server = ApiServer::shared().await;
    let backings = document(&server).await;
    let rules = Rules {
        ttl: Duration::from_secs(2),
        lasts: Duration::ZERO,
        at_least: 8,
        patience: Duration::from_mins(4),
    };
    contention::contest(backings, rules).await;
}

mod soak {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn one_party_at_a_time_for_a_minute() {
        let server = ApiServer::start().await;
        let backings = document(&server).await;
        let rules = Rules {
            ttl: Duration::from_secs(2),
            lasts: Duration::from_mins(1),
            at_least: 20,
            patience: Duration::from_mins(4),
        };
        contention::contest(backings, rules).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_promises_of_every_backing_hold() {
    let server = ApiServer::shared().await;
    conformance::pins_are_never_lost(document(&server).await).await;
    // They mostly wait, each on a document of its own.
    tokio::join!(
        conformance::the_pin_of_a_dead_reader_expires(document(&server).await),
        conformance::a_pin_belongs_to_its_holder(document(&server).await),
        conformance::what_cannot_be_read_is_never_overwritten(document(&server).await),
        conformance::a_claim_outlives_its_process(document(&server).await),
        conformance::an_epoch_is_raised_by_its_holder(document(&server).await),
        conformance::work_lasts_as_long_as_the_lock(document(&server).await),
    );
}

fn maps(client: Client, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(client, namespace)
}

#[tokio::test]
async fn labels_come_with_the_map_and_survive_every_write() {
    let server = ApiServer::shared().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let labels = BTreeMap::from([(
        "app.kubernetes.io/part-of".to_owned(),
        "etcd-main".to_owned(),
    )]);
    let metadata = ObjectMeta {
        labels: Some(labels.clone()),
        ..ObjectMeta::default()
    };
    let backing = ConfigMapBacking::new(client.clone(), &namespace, NAME).created_with(metadata);
    let coordinator = Coordinator::new(Arc::new(backing));
    assert_eq!(
        coordinator.lock().await.unwrap(),
        None,
        "reading creates nothing"
    );
    assert!(
        maps(client.clone(), &namespace)
            .get_opt(NAME)
            .await
            .unwrap()
            .is_none()
    );
    let held = conformance::acquire(&coordinator, "a", Duration::from_mins(1)).await;
    held.renew().await.unwrap();
    let map = maps(client, &namespace).get(NAME).await.unwrap();
    assert_eq!(map.metadata.labels, Some(labels));
}

#[tokio::test]
async fn a_map_that_is_deleted_ends_the_tenure() {
    let server = ApiServer::shared().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let backing = ConfigMapBacking::new(client.clone(), &namespace, NAME);
    let coordinator = Coordinator::new(Arc::new(backing));
    let held = conformance::acquire(&coordinator, "a", Duration::from_mins(1)).await;
    maps(client, &namespace)
        .delete(NAME, &DeleteParams::default())
        .await
        .unwrap();
    let lost = held.fence().check().await;
    assert!(
        matches!(lost, Err(CoordinationError::Lost { .. })),
        "{lost:?}"
    );
    assert!(held.renew().await.is_err());
    conformance::acquire(&coordinator, "b", Duration::from_mins(1)).await;
}

#[tokio::test]
async fn a_holder_without_an_api_server_stops_before_others_may_begin() {
    let mut server = ApiServer::start().await;
    let backings = document(&server).await;
    let ttl = Duration::from_secs(20);
    let coordinator = Coordinator::new(backings());
    // Others may begin a whole ttl after they saw it taken, which cannot be before it was asked for.
    let others_may_begin = Instant::now() + ttl;
    let held = conformance::acquire(&coordinator, "a", ttl).await;
    server.stop();
    let stopped = held.keep(sleep(Duration::from_mins(1))).await;
    assert!(
        matches!(stopped, Err(CoordinationError::Lost { .. })),
        "{stopped:?}"
    );
    let until = held.valid_until();
    assert!(until < others_may_begin, "{until:?} {others_may_begin:?}");
    assert!(
        coordinator
            .try_acquire(&conformance::wish("b", ttl))
            .await
            .is_err()
    );
    server.restart().await;
    // Nobody took it: the holder may have it back.
    held.renew().await.unwrap();
    held.fence().check().await.unwrap();
}

#[tokio::test]
async fn a_party_without_rights_is_told_what_it_may_not() {
    let server = ApiServer::shared().await;
    let (client, namespace) = (server.client_as("nobody").await, server.namespace().await);
    let backing = ConfigMapBacking::new(client, &namespace, NAME);
    let refused = Coordinator::new(Arc::new(backing)).pinned().await;
    let Err(CoordinationError::Backing(error @ BackingError::Read { .. })) = refused else {
        panic!("{refused:?}")
    };
    assert!(!error.is_transient());
    assert!(error.to_string().contains(NAME), "{error}");
}
