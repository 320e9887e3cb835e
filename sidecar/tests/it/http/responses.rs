//! Responses, path by path.

use jiff::Timestamp;
use mainstay_ids::{ClusterId, MemberId, Revision};
use mainstay_sidecar::http::{HttpConfig, SnapshotMethods};
use mainstay_sidecar::snapshotter::{Finality, SnapshotRequestError};
use mainstay_sidecar::state::{BackupFailure, MemberStatus, SidecarRole, SidecarState};
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{
    FakeSnapshotter, TestHttpServer, follower_state, leader_state, stored_snapshot, test_config,
};

#[tokio::test]
async fn only_a_leader_with_a_reachable_etcd_is_healthy() {
    let server = TestHttpServer::start_leader(test_config()).await;
    for role in SidecarRole::ALL {
        for (is_etcd_reachable, has_store) in
            [(true, true), (true, false), (false, true), (false, false)]
        {
            server.state_tx.send_replace(SidecarState {
                role,
                is_etcd_reachable,
                has_store,
                ..SidecarState::default()
            });
            let expected = role == SidecarRole::Leader && (is_etcd_reachable || !has_store);
            let response = server.get("/healthz").await;
            assert_eq!(response.json(), json!({ "health": expected }));
            assert_eq!(response.status, if expected { 200 } else { 503 });
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn failing_backup_never_makes_the_sidecar_unready() {
    let server = TestHttpServer::start_leader(test_config()).await;
    server.state_tx.send_replace(SidecarState {
        failure: Some(BackupFailure {
            class: "store",
            message: "the bucket is gone".to_owned(),
            since: Timestamp::UNIX_EPOCH,
        }),
        is_etcd_reachable: false,
        role: SidecarRole::Unknown,
        ..leader_state()
    });
    assert_eq!(server.get("/readyz").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn sidecar_is_not_ready_after_its_tasks_end() {
    let TestHttpServer {
        state_tx,
        port,
        cancel,
        task,
        ..
    } = TestHttpServer::start_leader(test_config()).await;
    drop(state_tx);
    let response = reqwest::get(format!("http://127.0.0.1:{port}/readyz")).await;
    assert_eq!(response.unwrap().status(), 503);
    cancel.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn full_snapshot_response_has_the_etcd_backup_restore_fields() {
    let server = TestHttpServer::start_leader(test_config()).await;
    for method in [Method::GET, Method::POST] {
        let response = server.request(method, "/snapshot/full?final=true").await;
        assert_eq!(
            (response.status, response.header("content-type")),
            (200, "application/json")
        );
        let snapshot = response.json();
        assert_eq!(
            snapshot["snapName"],
            "Full-00000000-00000100-1794795243.gz.final"
        );
        assert_eq!(snapshot["prefix"], "main/v2");
        assert_eq!(snapshot["isFinal"], true);
    }
    server.get("/snapshot/full").await;
    server.get("/snapshot/full?final=0").await;
    let requested = server.snapshotter.requests.lock().unwrap().clone();
    let (last, ordinary) = (Finality::Final, Finality::Ordinary);
    assert_eq!(requested, [last, last, ordinary, ordinary]);
    server.stop().await;
}

#[tokio::test]
async fn invalid_final_parameter_is_refused_before_a_snapshot() {
    let server = TestHttpServer::start_leader(test_config()).await;
    for query in ["final=yes", "final=tRue", "final=1&final=2"] {
        let response = server.get(&format!("/snapshot/full?{query}")).await;
        assert_eq!(response.status, 400, "{query}");
        assert!(response.json()["error"].is_string());
    }
    assert!(server.snapshotter.requests.lock().unwrap().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn delta_without_events_is_null() {
    let server = TestHttpServer::start_leader(test_config()).await;
    assert_eq!(server.get("/snapshot/delta").await.json(), Value::Null);
    server.snapshotter.keys.lock().unwrap().push("x".to_owned());
    let delta = server.request(Method::POST, "/snapshot/delta").await.json();
    assert_eq!(
        (&delta["kind"], &delta["lastRevision"]),
        (&json!("Incr"), &json!(120))
    );
    server.stop().await;
}

#[tokio::test]
async fn latest_snapshots_are_listed_on_each_request() {
    let server = TestHttpServer::start_leader(test_config()).await;
    let nothing = json!({ "fullSnapshot": null, "deltaSnapshots": null });
    assert_eq!(server.get("/snapshot/latest").await.json(), nothing);
    let keys = [
        "main/v2/Full-00000000-00000010-5.gz",
        "main/v2/Incr-00000011-00000012-6.gz",
    ];
    *server.snapshotter.keys.lock().unwrap() = keys.map(str::to_owned).into();
    let latest = server.get("/snapshot/latest").await.json();
    assert_eq!(latest["fullSnapshot"]["lastRevision"], 10);
    assert_eq!(latest["deltaSnapshots"][0]["startRevision"], 11);
    server.stop().await;
}

#[tokio::test]
async fn failure_response_contains_the_error_text() {
    let server = TestHttpServer::start_leader(test_config()).await;
    let failed = SnapshotRequestError::Failed {
        reason: "the bucket main is gone".to_owned(),
    };
    for error in [
        failed,
        SnapshotRequestError::Aborted,
        SnapshotRequestError::DeltasDisabled,
    ] {
        *server.snapshotter.error.lock().unwrap() = Some(error.clone());
        for path in ["/snapshot/full", "/snapshot/delta", "/snapshot/latest"] {
            let response = server.get(path).await;
            assert_eq!(response.status, 500, "{path}");
            assert_eq!(response.json(), json!({ "error": error.to_string() }));
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn snapshot_requests_without_a_store_return_405() {
    for state in [leader_state(), follower_state()] {
        let state = SidecarState {
            has_store: false,
            ..state
        };
        let server = TestHttpServer::start(test_config(), state, FakeSnapshotter::default()).await;
        for path in ["/snapshot/full", "/snapshot/delta", "/snapshot/latest"] {
            let response = server.get(path).await;
            assert_eq!(
                (response.status, response.header("allow")),
                (405, "GET,POST")
            );
            assert!(
                response.text.contains("no storage provider"),
                "{response:?}"
            );
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn other_methods_are_refused_with_the_allowed_methods() {
    let server = TestHttpServer::start_leader(test_config()).await;
    for (path, method, allowed) in [
        ("/snapshot/full", Method::PUT, "GET,POST"),
        ("/snapshot/full", Method::HEAD, "GET,POST"),
        ("/snapshot/delta", Method::DELETE, "GET,POST"),
        ("/healthz", Method::POST, "GET,HEAD"),
        ("/status", Method::PATCH, "GET,HEAD"),
        ("/metrics", Method::POST, "GET,HEAD"),
    ] {
        let response = server.request(method.clone(), path).await;
        assert_eq!(
            (response.status, response.header("allow")),
            (405, allowed),
            "{method} {path}"
        );
    }
    assert!(server.snapshotter.requests.lock().unwrap().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn get_takes_no_snapshot_when_post_is_required() {
    let config = HttpConfig {
        snapshot_methods: SnapshotMethods::PostOnly,
        ..test_config()
    };
    let server = TestHttpServer::start_leader(config).await;
    for path in ["/snapshot/full", "/snapshot/delta"] {
        let refused = server.get(path).await;
        assert_eq!((refused.status, refused.header("allow")), (405, "POST"));
        assert_eq!(server.request(Method::POST, path).await.status, 200);
    }
    assert_eq!(server.get("/snapshot/latest").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn unknown_path_returns_404() {
    let server = TestHttpServer::start_leader(test_config()).await;
    for path in [
        "/",
        "/config",
        "/initialization/status",
        "/debug/pprof/",
        "/snapshot/full/",
    ] {
        let response = server.get(path).await;
        assert_eq!(response.status, 404, "{path}");
        assert!(response.json()["error"].is_string());
    }
    server.stop().await;
}

#[tokio::test]
async fn metrics_count_requests_by_route() {
    let server = TestHttpServer::start_leader(test_config()).await;
    server.get("/healthz").await;
    server.get("/wp-login.php").await;
    server.request(Method::POST, "/status").await;
    let response = server.get("/metrics").await;
    assert_eq!(response.header("content-type"), "text/plain; version=0.0.4");
    for line in [
        "mainstay_http_requests_total{route=\"/healthz\",status=\"2xx\"} 1",
        "mainstay_http_requests_total{route=\"other\",status=\"4xx\"} 1",
        "mainstay_http_requests_total{route=\"/status\",status=\"4xx\"} 1",
        "mainstay_role{role=\"unknown\"} 1",
    ] {
        assert!(
            response.text.lines().any(|found| found == line),
            "no {line}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn status_reports_the_sidecar_state() {
    let observed_at = Timestamp::from_second(1_794_795_243).unwrap();
    let state = SidecarState {
        member_status: Some(MemberStatus {
            member: MemberId(0xabc),
            cluster: ClusterId(0xdef),
            leader: Some(MemberId(0xabc)),
            term: 7,
            revision: Revision(120),
            is_learner: false,
            db_bytes: 4096,
            db_bytes_in_use: 1024,
            version: "3.5.30".to_owned(),
            errors: vec!["memberID:abc alarm:NOSPACE".to_owned()],
            observed_at,
        }),
        captured: Some(Revision(100)),
        captured_at: Some(observed_at),
        last_full: Some(stored_snapshot("Full-00000000-00000090-1794795243.gz")),
        delta_checked_at: Some(observed_at),
        is_full_running: true,
        failure: Some(BackupFailure {
            class: "store",
            message: "the bucket is gone".to_owned(),
            since: observed_at,
        }),
        ..leader_state()
    };
    let server = TestHttpServer::start(test_config(), state, FakeSnapshotter::default()).await;
    let mut status = server.get("/status").await.json();
    let lag = status["lag"].take();
    assert_eq!(lag["revisions"], 20);
    assert!(lag["seconds"].is_f64(), "{lag}");
    assert!(status["uptimeSeconds"].take().is_u64());
    let full = status["lastFull"].take();
    assert_eq!(full["lastRevision"], 90);
    let time = "2026-11-16T02:14:03Z";
    let expected = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptimeSeconds": null,
        "standing": "leader",
        "etcd": {
            "answers": true, "member": "abc", "cluster": "def", "leader": "abc", "term": 7, "revision": 120,
            "isLearner": false, "dbBytes": 4096, "dbBytesInUse": 1024, "version": "3.5.30",
            "errors": ["memberID:abc alarm:NOSPACE"], "at": time,
        },
        "store": { "isConfigured": true },
        "captured": 100,
        "capturedAt": time,
        "lag": null,
        "lastFull": null,
        "lastDelta": null,
        "deltaCheckedAt": time,
        "fullUnderWay": true,
        "trouble": { "class": "store", "text": "the bucket is gone", "since": time },
    });
    assert_eq!(status, expected);
    server.stop().await;
}
