//! Changes of a cluster are reported as Events of its Etcd.

use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use super::fake_kubelet::FakeKubelet;
use super::test_env::{RunningController, TestEnv};

/// The Events of `main`: type, reason, message.
async fn list_events(stage: &TestEnv) -> Vec<(String, String, String)> {
    let list = stage.api::<Event>().list(&ListParams::default()).await;
    let of_main = list.expect("a list").items.into_iter().filter(|event| {
        let about = &event.involved_object;
        about.kind.as_deref() == Some("Etcd") && about.name.as_deref() == Some("main")
    });
    of_main
        .map(|event| {
            let text = |text: Option<String>| text.unwrap_or_default();
            (text(event.type_), text(event.reason), text(event.message))
        })
        .collect()
}

/// Waits for an Event of this type that contains this text.
pub(super) async fn wait_for_event(stage: &TestEnv, kind: &str, text: &str) {
    stage
        .wait_until(&format!("{kind} Event: {text}"), async || {
            let events = list_events(stage).await;
            events
                .iter()
                .any(|(type_, _, message)| type_ == kind && message.contains(text))
        })
        .await;
}

/// Waits for an Event with this reason.
async fn wait_for_event_reason(stage: &TestEnv, reason: &str) {
    stage
        .wait_until(&format!("an Event has reason {reason}"), async || {
            let events = list_events(stage).await;
            events.iter().any(|(_, found, _)| found == reason)
        })
        .await;
}

/// Another reconcile writes nothing, thus no Event. The writes are counted because an equal Event only raises the count of
/// the existing one.
async fn assert_reconcile_writes_nothing(stage: &TestEnv, controller: &RunningController) {
    let before = controller.metrics.total_writes();
    stage.reconcile_again(controller).await;
    assert_eq!(controller.metrics.total_writes(), before, "nothing changed");
}

#[tokio::test]
async fn transitions_emit_events_and_an_unchanged_status_emits_none() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    // The pod stays unready until `Waiting` is published.
    kubelet.configure(|behavior| {
        behavior.ignored_pods.insert("main-0".to_owned());
    });
    let controller = stage.start_controller().await;
    let etcd = stage.create_etcd("main", json!({ "replicas": 1 })).await;
    wait_for_event_reason(&stage, "Waiting").await;
    kubelet.configure(|behavior| behavior.ignored_pods.clear());
    stage.wait_settled("main").await;
    wait_for_event(&stage, "Normal", "AllMembersReady is True").await;
    wait_for_event_reason(&stage, "Reconciled").await;

    stage.wait_until_idle(&controller).await;
    assert_reconcile_writes_nothing(&stage, &controller).await;

    stage
        .patch_etcd("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    wait_for_event_reason(&stage, "Processing").await;

    let about = stage.api::<Event>().list(&ListParams::default()).await;
    let uids = about.expect("a list").items.into_iter();
    let mut uids = uids.filter_map(|event| event.involved_object.uid);
    assert!(
        uids.any(|uid| Some(uid) == etcd.uid()),
        "no Event refers to the Etcd, so `kubectl describe` shows none"
    );
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn unsupported_spec_emits_one_warning_event() {
    let stage = TestEnv::start().await;
    let controller = stage.start_controller().await;
    let store = json!({ "provider": "openstack", "container": "backups", "prefix": "shoot/main" });
    let spec = json!({ "replicas": 1, "backup": { "store": store } });
    stage.create_etcd("main", spec).await;
    wait_for_event(&stage, "Warning", "is not supported").await;

    stage.wait_until_idle(&controller).await;
    assert_reconcile_writes_nothing(&stage, &controller).await;
    let events = list_events(&stage).await;
    let [(_, reason, _)] = events.as_slice() else {
        panic!("expected one Event, not {events:?}");
    };
    assert_eq!(reason, "Failed");
    controller.stop().await;
}
