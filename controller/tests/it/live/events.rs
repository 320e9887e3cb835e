//! What becomes of a cluster is told where people look first: in the Events of its resource.

use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use super::kubelet::Kubelet;
use super::stage::{Running, Stage};

/// The Events of `main`: type, reason, message.
async fn events(stage: &Stage) -> Vec<(String, String, String)> {
    let list = stage.api::<Event>().list(&ListParams::default()).await;
    let of_main = list.expect("a list").items.into_iter().filter(|event| {
        let about = &event.involved_object;
        about.kind.as_deref() == Some("Etcd") && about.name.as_deref() == Some("main")
    });
    of_main
        .map(|event| {
            let said = |text: Option<String>| text.unwrap_or_default();
            (said(event.type_), said(event.reason), said(event.message))
        })
        .collect()
}

/// Waits for an Event of this type that says this.
pub(super) async fn told(stage: &Stage, kind: &str, words: &str) {
    stage
        .eventually(&format!("{kind} Event: {words}"), async || {
            let events = events(stage).await;
            events
                .iter()
                .any(|(type_, _, message)| type_ == kind && message.contains(words))
        })
        .await;
}

/// Waits for an Event with this reason.
async fn told_of(stage: &Stage, reason: &str) {
    stage
        .eventually(&format!("{reason} is an Event"), async || {
            let events = events(stage).await;
            events.iter().any(|(_, of, _)| of == reason)
        })
        .await;
}

/// Looking again writes nothing, and so no Event: an equal one would be counted in the one that is there.
async fn looked_at_again(stage: &Stage, controller: &Running) {
    let before = controller.metrics.writes();
    stage.look_again(controller).await;
    assert_eq!(controller.metrics.writes(), before, "nothing is different");
}

#[tokio::test]
async fn transitions_are_events_and_standing_still_is_none() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage);
    // The pod stays unready until `Waiting` is published.
    kubelet.order(|orders| {
        orders.idle.insert("main-0".to_owned());
    });
    let controller = stage.control().await;
    let etcd = stage.create("main", json!({ "replicas": 1 })).await;
    told_of(&stage, "Waiting").await;
    kubelet.order(|orders| orders.idle.clear());
    stage.settled("main").await;
    told(&stage, "Normal", "AllMembersReady is True").await;
    told_of(&stage, "Reconciled").await;

    stage.at_rest(&controller).await;
    looked_at_again(&stage, &controller).await;

    stage
        .change("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    told_of(&stage, "Processing").await;

    let about = stage.api::<Event>().list(&ListParams::default()).await;
    let uids = about.expect("a list").items.into_iter();
    let mut uids = uids.filter_map(|event| event.involved_object.uid);
    assert!(
        uids.any(|uid| Some(uid) == etcd.uid()),
        "`kubectl describe` shows them"
    );
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn a_spec_nobody_can_work_with_is_a_warning_told_once() {
    let stage = Stage::set().await;
    let controller = stage.control().await;
    let store = json!({ "provider": "openstack", "container": "backups", "prefix": "shoot/main" });
    let spec = json!({ "replicas": 1, "backup": { "store": store } });
    stage.create("main", spec).await;
    told(&stage, "Warning", "is not supported").await;

    stage.at_rest(&controller).await;
    looked_at_again(&stage, &controller).await;
    let events = events(&stage).await;
    let [(_, reason, _)] = events.as_slice() else {
        panic!("one Event, not {events:?}");
    };
    assert_eq!(reason, "Failed");
    controller.stop().await;
}
