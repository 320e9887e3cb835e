use serde::de::DeserializeOwned;
use serde_json::json;

use super::*;

fn from_json<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn now() -> Timestamp {
    "2026-01-02T03:05:00Z".parse().unwrap()
}

fn member_pod(status: &Value) -> Pod {
    from_json(json!({
        "metadata": {"name": "main-0", "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"nodeName": "mainstay", "containers": [{"name": "etcd"}, {"name": "backup-restore"}]},
        "status": status,
    }))
}

fn container_status(name: &str, ready: bool, state: &Value) -> Value {
    json!({
        "name": name, "ready": ready, "restartCount": 1, "state": state, "image": "", "imageID": "",
    })
}

#[test]
fn etcd_status_is_formatted_as_lines() {
    let time = "2026-01-02T03:04:05Z";
    let text = format_etcd(&from_json(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "Etcd",
        "metadata": {"name": "main", "generation": 2},
        "spec": {"replicas": 3, "etcd": {}, "backup": {}, "labels": {}},
        "status": {
            "observedGeneration": 1,
            "readyReplicas": 2,
            "lastOperation": {
                "type": "Reconcile", "state": "Processing", "description": "waiting for main-2",
                "runID": "1", "lastUpdateTime": time,
            },
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Quorate", "message": "2 of 3 answer",
                "lastTransitionTime": time, "lastUpdateTime": time,
            }],
            "members": [{
                "name": "main-0", "role": "Leader", "status": "Ready", "reason": "Serves",
                "lastTransitionTime": time,
            }],
        },
    })));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "Etcd main: 3 replicas desired, 2 ready",
            "  status is outdated: observedGeneration is older than the spec",
            "  operation: Processing: waiting for main-2",
            "  Ready=True (Quorate): 2 of 3 answer",
            "  member main-0: Leader, Ready (Serves)",
        ]
    );
}

#[test]
fn pod_table_shows_why_a_pod_is_not_ready() {
    let crashing = container_status(
        "backup-restore",
        false,
        &json!({"waiting": {"reason": "CrashLoopBackOff"}}),
    );
    let etcd = container_status("etcd", true, &json!({"running": {}}));
    let pod = member_pod(&json!({"phase": "Running", "containerStatuses": [etcd, crashing]}));
    let text = format_pods(&[pod], now());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "  NAME    READY  STATUS            RESTARTS  NODE      AGE",
            "  main-0  1/2    CrashLoopBackOff  2         mainstay  55s",
        ]
    );
}

#[test]
fn failed_init_container_is_named() {
    let failed = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
    let init = container_status("init", false, &failed);
    let pod = member_pod(&json!({"phase": "Pending", "initContainerStatuses": [init]}));
    assert_eq!(pod_state(&pod), "Init:init:Error (exit code 3)");
    let expected = UnreadyContainer {
        container: "init".to_owned(),
        restarts: 1,
    };
    assert_eq!(unready_containers(&pod), [expected]);
}

#[test]
fn ready_and_succeeded_containers_are_not_listed_as_unready() {
    let done = container_status("init", false, &json!({"terminated": {"exitCode": 0}}));
    let etcd = container_status("etcd", true, &json!({"running": {}}));
    let runs = json!({"initContainerStatuses": [done], "containerStatuses": [etcd]});
    assert_eq!(unready_containers(&member_pod(&runs)), []);
    let job = container_status("job", false, &json!({"terminated": {"exitCode": 0}}));
    let ended = json!({"phase": "Succeeded", "containerStatuses": [job]});
    assert_eq!(unready_containers(&member_pod(&ended)), []);
}

#[test]
fn only_the_newest_events_are_shown_newest_last() {
    let event = |second: u32, count: i32| -> Event {
        from_json(json!({
            "metadata": {}, "type": "Warning", "reason": "BackOff", "message": "again\n",
            "count": count, "lastTimestamp": format!("2026-01-02T03:04:{second:02}Z"),
            "involvedObject": {"kind": "Pod", "name": format!("main-{second}")},
        }))
    };
    let all: Vec<Event> = (0..30).rev().map(|second| event(second, 2)).collect();
    let text = format_events(&all, now());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), MAX_EVENTS);
    let newest = "    31s ago  Warning  Pod/main-29  BackOff: again (x2)";
    assert_eq!(lines.last(), Some(&newest));
}

#[test]
fn json_log_line_is_formatted_and_plain_line_is_unchanged() {
    let json = r#"{"timestamp":"T","level":"WARN","fields":{"message":"no answer","pod":"main-1"},"target":"x"}"#;
    assert_eq!(format_log_line(json), "T WARN no answer pod=main-1");
    let zap = r#"{"level":"info","ts":"T","caller":"a.go:1","msg":"serving","port":2379}"#;
    assert_eq!(format_log_line(zap), "T info serving port=2379");
    assert_eq!(format_log_line("plain {words}"), "plain {words}");
}
