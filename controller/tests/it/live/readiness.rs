//! The health endpoints: liveness and readiness.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use mainstay_controller::http;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::fault_injection::{self, FaultAction};
use super::test_env::{RunningController, TestEnv};

/// The HTTP endpoints of a controller. Dropping it stops the server.
struct Endpoints {
    url: String,
    _shutdown: DropGuard,
}

impl Endpoints {
    async fn serve(controller: &RunningController) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (metrics, readiness) = (controller.metrics.clone(), controller.readiness.clone());
        let cancel = CancellationToken::new();
        tokio::spawn(http::serve_on(listener, metrics, readiness, cancel.clone()));
        Self {
            url,
            _shutdown: cancel.drop_guard(),
        }
    }

    /// Status code of a GET.
    async fn get_status_code(&self, path: &str) -> u16 {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let response = http.get(format!("{}{path}", self.url)).send().await;
        response.unwrap().status().as_u16()
    }

    /// Whether it is ready. Asserts that it is live in any case.
    async fn is_ready(&self) -> bool {
        assert_eq!(self.get_status_code("/healthz").await, 200);
        assert_eq!(self.get_status_code("/livez").await, 200);
        let code = self.get_status_code("/readyz").await;
        assert!(matches!(code, 200 | 503), "{code}");
        code == 200
    }
}

/// Requests of a controller.
#[derive(Default)]
struct RequestCounts {
    all: AtomicU32,
    stateful_sets: AtomicU32,
    /// Whether StatefulSets can be listed.
    can_list: AtomicBool,
}

#[tokio::test]
async fn controller_is_ready_once_caches_are_filled_and_always_live() {
    let mut stage = TestEnv::start_without_crds().await;
    let requested = Arc::new(RequestCounts::default());
    let counts = Arc::clone(&requested);
    let client = fault_injection::build_client(&stage, move |request| {
        counts.all.fetch_add(1, Ordering::SeqCst);
        if !request.uri().path().ends_with("/statefulsets") {
            return FaultAction::Forward;
        }
        counts.stateful_sets.fetch_add(1, Ordering::SeqCst);
        if counts.can_list.load(Ordering::SeqCst) {
            FaultAction::Forward
        } else {
            FaultAction::RespondStatus(500)
        }
    })
    .await;
    let controller = stage.start_controller_via(client, |_| {});
    let endpoints = Endpoints::serve(&controller).await;
    // A second request shows that the response to the first was handled.
    let twice = async |count: &AtomicU32| {
        let before = count.load(Ordering::SeqCst);
        stage
            .wait_until("it sends two requests", async || {
                count.load(Ordering::SeqCst) >= before + 2
            })
            .await;
    };
    twice(&requested.all).await;
    assert!(!endpoints.is_ready().await, "the CRDs are not served");

    stage.install_crds().await;
    twice(&requested.stateful_sets).await;
    assert!(!endpoints.is_ready().await, "not all caches are filled");

    requested.can_list.store(true, Ordering::SeqCst);
    let is_ready = async || endpoints.is_ready().await;
    stage.wait_until("it is ready", is_ready).await;

    stage.server.stop();
    let before = requested.all.load(Ordering::SeqCst);
    let has_retried = async || requested.all.load(Ordering::SeqCst) >= before + 2;
    stage.wait_until("requests fail", has_retried).await;
    assert_eq!(endpoints.get_status_code("/healthz").await, 200);
    assert_eq!(endpoints.get_status_code("/livez").await, 200);
    controller.kill();
}
