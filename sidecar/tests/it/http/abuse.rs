//! Slow, numerous and misbehaving clients; and the shutdown of the server.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mainstay_sidecar::http::{HttpConfig, HttpLimits, HttpServeError, Listeners};
use reqwest::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::support::{
    FakeSnapshotter, TEST_TIMEOUT, TestHttpServer, TestResponse, leader_state, short_limits,
    test_config, wait_until,
};

fn config_with_limits(limits: HttpLimits) -> HttpConfig {
    HttpConfig {
        limits,
        ..test_config()
    }
}

async fn connect(server: &TestHttpServer) -> TcpStream {
    TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap()
}

/// Everything the server sends before it closes the connection.
async fn read_to_close(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = timeout(TEST_TIMEOUT, stream.read_to_end(&mut bytes)).await;
    // A reset is as good as a close.
    let _ = read.expect("the connection was not closed");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn incomplete_header_times_out_while_others_are_served() {
    let header_timeout = Duration::from_secs(10);
    let server = TestHttpServer::start_leader(config_with_limits(HttpLimits {
        header_timeout,
        ..short_limits()
    }))
    .await;
    let started = Instant::now();
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = connect(&server).await;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost:")
            .await
            .unwrap();
        slow.push(stream);
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    assert!(
        started.elapsed() < header_timeout,
        "other clients had to wait"
    );
    for stream in &mut slow {
        assert!(!read_to_close(stream).await.contains("200 OK"));
    }
    assert!(started.elapsed() >= header_timeout, "closed too early");
    server.stop().await;
}

#[tokio::test]
async fn slow_header_does_not_extend_the_timeout() {
    let server = TestHttpServer::start_leader(config_with_limits(HttpLimits {
        header_timeout: Duration::from_millis(500),
        ..short_limits()
    }))
    .await;
    let stream = connect(&server).await;
    let (mut from, mut to) = stream.into_split();
    let slow_writer = tokio::spawn(async move {
        for byte in b"GET /healthz HTTP/1.1\r\n".iter().cycle() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if to.write_all(&[*byte]).await.is_err() {
                return;
            }
        }
    });
    let mut bytes = Vec::new();
    let _ = timeout(TEST_TIMEOUT, from.read_to_end(&mut bytes))
        .await
        .unwrap();
    drop(from);
    timeout(TEST_TIMEOUT, slow_writer).await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let server = TestHttpServer::start_leader(config_with_limits(HttpLimits {
        header_timeout: Duration::from_millis(300),
        ..short_limits()
    }))
    .await;
    let mut stream = connect(&server).await;
    let request = b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let received = read_to_close(&mut stream).await;
    assert!(received.starts_with("HTTP/1.1 200 OK"), "{received}");
    server.stop().await;
}

#[tokio::test]
async fn client_with_too_many_connections_is_refused_and_counted() {
    let server = TestHttpServer::start_leader(config_with_limits(HttpLimits {
        max_connections: 10,
        max_connections_per_address: 3,
        ..short_limits()
    }))
    .await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(connect(&server).await);
    }
    let mut fourth = connect(&server).await;
    assert_eq!(read_to_close(&mut fourth).await, "");
    let refused = || {
        let text = server.metrics.render().unwrap();
        text.contains("mainstay_http_connections_refused_total 1\n")
    };
    wait_until("the refused connection to be counted", refused).await;
    held.pop();
    // The server frees the slot a moment later.
    let is_served = async {
        while Client::new()
            .get(server.url("/readyz"))
            .send()
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TEST_TIMEOUT, is_served)
        .await
        .expect("the slot was not freed");
    server.stop().await;
}

#[tokio::test]
async fn oversized_header_is_refused() {
    let server = TestHttpServer::start_leader(test_config()).await;
    for (count, length) in [(1, 64 << 10), (200, 10)] {
        let mut stream = connect(&server).await;
        let mut request = "GET /readyz HTTP/1.1\r\n".to_owned();
        for number in 0..count {
            write!(request, "h{number}: {}\r\n", "x".repeat(length)).unwrap();
        }
        request.push_str("\r\n");
        let _ = stream.write_all(request.as_bytes()).await;
        let received = read_to_close(&mut stream).await;
        assert!(
            received.starts_with("HTTP/1.1 431 ") || received.is_empty(),
            "{received}"
        );
        assert!(!received.contains("200 OK"));
    }
    assert_eq!(server.get("/readyz").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn large_body_is_refused_unread() {
    let server = TestHttpServer::start_leader(test_config()).await;
    let mut stream = connect(&server).await;
    let head = "POST /snapshot/full HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000\r\n\r\nxxx";
    stream.write_all(head.as_bytes()).await.unwrap();
    let received = read_to_close(&mut stream).await;
    assert!(received.starts_with("HTTP/1.1 413 "), "{received}");
    assert!(server.snapshotter.requests.lock().unwrap().is_empty());
    server.stop().await;
}

#[tokio::test]
async fn malformed_request_gets_a_400_or_a_closed_connection() {
    let server = TestHttpServer::start_leader(test_config()).await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
    ] {
        let mut stream = connect(&server).await;
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let received = read_to_close(&mut stream).await;
        assert!(
            received.is_empty() || received.starts_with("HTTP/1.1 400 "),
            "{received}"
        );
    }
    assert_eq!(server.get("/readyz").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn unread_response_is_aborted() {
    let server = TestHttpServer::start_leader(config_with_limits(HttpLimits {
        write_timeout: Duration::from_millis(500),
        max_connections_per_address: 1,
        ..short_limits()
    }))
    .await;
    // More than the socket buffers of both sides hold.
    let key = |n| format!("main/v2/Incr-{n:0>200}-{n:0>200}-5.gz");
    *server.snapshotter.keys.lock().unwrap() = (1..40_000).map(key).collect();
    let mut greedy = connect(&server).await;
    let request = b"GET /snapshot/latest HTTP/1.1\r\nHost: a\r\n\r\n";
    greedy.write_all(request).await.unwrap();
    let is_served = async {
        while Client::new()
            .get(server.url("/readyz"))
            .send()
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, is_served)
        .await
        .expect("the only slot was not freed");
    server.stop().await;
}

#[tokio::test]
async fn snapshots_of_one_kind_run_one_at_a_time_with_a_short_queue() {
    let limits = HttpLimits {
        max_waiting: 1,
        ..short_limits()
    };
    let server = TestHttpServer::start(
        config_with_limits(limits),
        leader_state(),
        FakeSnapshotter::new_blocked(),
    )
    .await;
    let ask = || tokio::spawn(Client::new().get(server.url("/snapshot/full")).send());
    let first = ask();
    let snapshotter = &server.snapshotter;
    wait_until("the first snapshot to start", || {
        snapshotter.requests.lock().unwrap().len() == 1
    })
    .await;
    let (mut second, mut third) = (ask(), ask());
    // The later of the two finds the queue full.
    let (rejected, queued) = tokio::select! {
        response = &mut second => (response, third),
        response = &mut third => (response, second),
    };
    let rejected = TestResponse::read(rejected.unwrap().unwrap()).await;
    assert_eq!(
        (rejected.status, rejected.header("retry-after")),
        (503, "5")
    );
    assert_eq!(
        server.get("/healthz").await.status,
        200,
        "the health check had to wait"
    );
    snapshotter.gate.add_permits(2);
    for waiting in [first, queued] {
        let response = timeout(TEST_TIMEOUT, waiting)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(response.status(), 200);
    }
    assert_eq!(snapshotter.max_running.load(Ordering::SeqCst), 1);
    server.stop().await;
}

#[tokio::test]
async fn disconnected_client_does_not_stop_the_snapshot_or_start_another() {
    let server = TestHttpServer::start(
        test_config(),
        leader_state(),
        FakeSnapshotter::new_blocked(),
    )
    .await;
    let snapshotter = &server.snapshotter;
    let first = tokio::spawn(Client::new().get(server.url("/snapshot/full")).send());
    wait_until("the first snapshot to start", || {
        snapshotter.requests.lock().unwrap().len() == 1
    })
    .await;
    first.abort();
    let second = tokio::spawn(Client::new().get(server.url("/snapshot/full")).send());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(
        snapshotter.requests.lock().unwrap().len(),
        1,
        "two snapshots ran concurrently"
    );
    snapshotter.gate.add_permits(2);
    let response = timeout(TEST_TIMEOUT, second)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(response.status(), 200);
    server.stop().await;
}

#[tokio::test]
async fn snapshot_longer_than_the_timeout_returns_504() {
    let limits = HttpLimits {
        snapshot_timeout: Duration::from_millis(200),
        ..short_limits()
    };
    let server = TestHttpServer::start(
        config_with_limits(limits),
        leader_state(),
        FakeSnapshotter::new_blocked(),
    )
    .await;
    let response = server.get("/snapshot/full").await;
    assert_eq!(response.status, 504, "{response:?}");
    server.snapshotter.gate.add_permits(1);
    server.stop().await;
}

#[tokio::test]
async fn too_many_concurrent_requests_return_503_with_retry_after() {
    let server = TestHttpServer::start_leader(config_with_limits(HttpLimits {
        max_requests: 0,
        ..short_limits()
    }))
    .await;
    for path in ["/metrics", "/status"] {
        let response = server.get(path).await;
        assert_eq!(
            (response.status, response.header("retry-after")),
            (503, "5"),
            "{path}"
        );
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn stopping_server_finishes_running_requests() {
    let limits = HttpLimits {
        drain_timeout: TEST_TIMEOUT,
        ..short_limits()
    };
    let server = TestHttpServer::start(
        config_with_limits(limits),
        leader_state(),
        FakeSnapshotter::new_blocked(),
    )
    .await;
    let request = tokio::spawn(Client::new().get(server.url("/snapshot/full")).send());
    let snapshotter = server.snapshotter.clone();
    wait_until("the snapshot to start", || {
        snapshotter.requests.lock().unwrap().len() == 1
    })
    .await;
    server.cancel.cancel();
    let refused = || std::net::TcpStream::connect(("127.0.0.1", server.port)).is_err();
    wait_until("new connections to be refused", refused).await;
    snapshotter.gate.add_permits(1);
    let response = timeout(TEST_TIMEOUT, request)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(response.status(), 200);
    server.stop().await;
}

#[tokio::test]
async fn stopping_server_waits_only_for_the_drain_timeout() {
    let server = TestHttpServer::start(
        test_config(),
        leader_state(),
        FakeSnapshotter::new_blocked(),
    )
    .await;
    let request = tokio::spawn(Client::new().get(server.url("/snapshot/full")).send());
    let mut idle = connect(&server).await;
    idle.write_all(b"GET /").await.unwrap();
    let snapshotter = server.snapshotter.clone();
    wait_until("the snapshot to start", || {
        snapshotter.requests.lock().unwrap().len() == 1
    })
    .await;
    // Neither the snapshot nor the idle client ends by itself: a server that waited for them would hang here.
    server.stop().await;
    let response = timeout(TEST_TIMEOUT, request).await.unwrap().unwrap();
    assert!(response.is_err() || response.unwrap().status() == 500);
}

#[tokio::test]
async fn port_in_use_is_named_in_the_error() {
    let server = TestHttpServer::start_leader(test_config()).await;
    let again = HttpConfig {
        port: server.port,
        ..test_config()
    };
    let error = Listeners::bind(&again).await.unwrap_err();
    let address = format!("127.0.0.1:{}", server.port);
    assert!(matches!(error, HttpServeError::Bind { .. }));
    assert!(error.to_string().contains(&address), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn default_listen_address_serves_ipv4_and_ipv6() {
    let server = TestHttpServer::start_leader(HttpConfig {
        listen_address: None,
        ..test_config()
    })
    .await;
    assert_eq!(server.get("/readyz").await.status, 200);
    // The host may lack IPv6; if it has it, it must be served.
    if std::net::TcpListener::bind(("::1", 0)).is_ok() {
        let url = format!("http://[::1]:{}/readyz", server.port);
        assert_eq!(reqwest::get(url).await.unwrap().status(), 200);
    }
    server.stop().await;
}
