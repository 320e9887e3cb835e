//! Requests to a sidecar that does not lead. The leader's sidecar has another address and the same port, as in a cluster.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use mainstay_sidecar::http::{FORWARDED_HEADER, HttpConfig, HttpLimits, Listeners};
use mainstay_sidecar::snapshotter::{Finality, SnapshotRequestError};
use mainstay_sidecar::state::{SidecarRole, SidecarState};
use reqwest::{Client, Method};
use serde_json::json;
use url::Url;

use super::support::{
    FakeSnapshotter, LOCALHOST, TestHttpServer, TestResponse, follower_state, leader_state,
    short_limits, test_config,
};

/// A second loopback address stands in for another host.
const LEADER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A follower, and a leader on the same port of another address. Tests send their requests to the follower.
async fn start_pair(
    limits: HttpLimits,
    snapshotter: FakeSnapshotter,
) -> (TestHttpServer, TestHttpServer) {
    let follower = HttpConfig {
        limits,
        ..test_config()
    };
    let follower =
        TestHttpServer::start(follower, follower_state(), FakeSnapshotter::default()).await;
    let leader_config = HttpConfig {
        listen_address: Some(LEADER_ADDRESS),
        port: follower.port,
        ..test_config()
    };
    let leader = TestHttpServer::start(leader_config, leader_state(), snapshotter).await;
    let url = Url::parse("http://127.0.0.2:2379").unwrap();
    *follower.leader_finder.0.lock().unwrap() = Some(url);
    (follower, leader)
}

#[tokio::test]
async fn follower_forwards_the_response_of_the_leader() {
    let (follower, leader) = start_pair(short_limits(), FakeSnapshotter::default()).await;
    let full = follower
        .request(Method::POST, "/snapshot/full?final=true")
        .await;
    assert_eq!(
        (full.status, full.header("content-type")),
        (200, "application/json")
    );
    assert_eq!(full.json()["isFinal"], true);
    assert_eq!(
        *leader.snapshotter.requests.lock().unwrap(),
        [Finality::Final]
    );
    assert!(follower.snapshotter.requests.lock().unwrap().is_empty());

    assert_eq!(follower.get("/snapshot/delta").await.text, "null");
    let keys = vec!["main/v2/Full-00000000-00000010-5.gz".to_owned()];
    *leader.snapshotter.keys.lock().unwrap() = keys;
    let latest = follower.get("/snapshot/latest").await.json();
    assert_eq!(latest["fullSnapshot"]["lastRevision"], 10);

    let reason = "the bucket is gone".to_owned();
    *leader.snapshotter.error.lock().unwrap() = Some(SnapshotRequestError::Failed { reason });
    let failed = follower.get("/snapshot/full").await;
    assert_eq!(failed.status, 500);
    assert_eq!(
        failed.json(),
        json!({ "error": "snapshot failed: the bucket is gone" })
    );
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test]
async fn request_is_forwarded_only_once() {
    let (one, other) = start_pair(short_limits(), FakeSnapshotter::default()).await;
    // Each takes the other for the leader, and the second is healthy because it leads again.
    let url = Url::parse("http://127.0.0.1:2379").unwrap();
    *other.leader_finder.0.lock().unwrap() = Some(url);
    let request = Client::new().get(one.url("/snapshot/full"));
    let response = request.header(FORWARDED_HEADER, "1").send().await.unwrap();
    let response = TestResponse::read(response).await;
    assert_eq!(response.status, 405, "{response:?}");
    assert!(
        response.text.contains("already forwarded once"),
        "{response:?}"
    );
    assert!(other.snapshotter.requests.lock().unwrap().is_empty());
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn sidecar_does_not_forward_to_itself() {
    let server =
        TestHttpServer::start(test_config(), follower_state(), FakeSnapshotter::default()).await;
    let url = Url::parse("http://127.0.0.1:2379").unwrap();
    *server.leader_finder.0.lock().unwrap() = Some(url);
    let response = server.get("/snapshot/full").await;
    assert_eq!(response.status, 405, "{response:?}");
    server.stop().await;
}

#[tokio::test]
async fn unavailable_leader_returns_405_as_etcd_backup_restore_does() {
    let (follower, leader) = start_pair(short_limits(), FakeSnapshotter::default()).await;
    let refused = async |reason: &str| {
        let response = follower.get("/snapshot/full").await;
        assert_eq!(
            (response.status, response.header("allow")),
            (405, "GET,POST"),
            "{reason}"
        );
        assert!(response.text.contains(reason), "{response:?}");
    };
    let unhealthy = SidecarState {
        is_etcd_reachable: false,
        ..leader_state()
    };
    leader.state_tx.send_replace(unhealthy);
    refused("not healthy").await;
    leader.state_tx.send_replace(leader_state());
    let known = SidecarState {
        role: SidecarRole::Unknown,
        ..follower_state()
    };
    follower.state_tx.send_replace(known);
    *follower.leader_finder.0.lock().unwrap() = None;
    refused("no leader").await;
    let unused_address = Url::parse("http://127.0.0.3:2379").unwrap();
    *follower.leader_finder.0.lock().unwrap() = Some(unused_address);
    refused("health").await;
    let socket = Url::parse("unix:/run/etcd.sock").unwrap();
    *follower.leader_finder.0.lock().unwrap() = Some(socket);
    refused("has no host").await;
    assert!(leader.snapshotter.requests.lock().unwrap().is_empty());
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test]
async fn slow_leader_returns_504() {
    let limits = HttpLimits {
        snapshot_timeout: Duration::from_millis(300),
        ..short_limits()
    };
    let (follower, leader) = start_pair(limits, FakeSnapshotter::new_blocked()).await;
    let response = follower.get("/snapshot/full").await;
    assert_eq!(response.status, 504, "{response:?}");
    leader.snapshotter.gate.add_permits(1);
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test]
async fn oversized_response_of_the_leader_returns_502() {
    let limits = HttpLimits {
        max_response_bytes: 100,
        ..short_limits()
    };
    let (follower, leader) = start_pair(limits, FakeSnapshotter::default()).await;
    let response = follower.get("/snapshot/full").await;
    assert_eq!(response.status, 502, "{response:?}");
    assert!(response.text.contains("too large"), "{response:?}");
    follower.stop().await;
    leader.stop().await;
}

#[tokio::test]
async fn listener_reports_the_bound_port() {
    let listeners = Listeners::bind(&test_config()).await.unwrap();
    assert_ne!(listeners.port(), 0);
    assert_eq!(test_config().listen_address, Some(LOCALHOST));
}
