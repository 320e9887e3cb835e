//! What the endpoints say: whether the process lives, and whether it is of use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use mainstay_controller::http;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::stage::{Running, Stage};
use super::wire::{self, Fate};

/// The endpoints of a controller, until dropped.
struct Endpoints {
    url: String,
    _end: DropGuard,
}

impl Endpoints {
    async fn of(controller: &Running) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (metrics, readiness) = (controller.metrics.clone(), controller.readiness.clone());
        let cancel = CancellationToken::new();
        tokio::spawn(http::serve_on(listener, metrics, readiness, cancel.clone()));
        Self {
            url,
            _end: cancel.drop_guard(),
        }
    }

    /// The code of an answer.
    async fn code(&self, path: &str) -> u16 {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let answer = http.get(format!("{}{path}", self.url)).send().await;
        answer.unwrap().status().as_u16()
    }

    /// It lives, whatever else; whether it is ready.
    async fn is_ready(&self) -> bool {
        assert_eq!(self.code("/healthz").await, 200);
        assert_eq!(self.code("/livez").await, 200);
        let code = self.code("/readyz").await;
        assert!(matches!(code, 200 | 503), "{code}");
        code == 200
    }
}

/// What a controller asked for.
#[derive(Default)]
struct Asked {
    anything: AtomicU32,
    sets: AtomicU32,
    /// Whether sets can be listed.
    is_told: AtomicBool,
}

#[tokio::test]
async fn it_is_ready_once_it_has_seen_everything_and_lives_all_the_time() {
    let mut stage = Stage::bare().await;
    let asked = Arc::new(Asked::default());
    let counts = Arc::clone(&asked);
    let client = wire::client(&stage, move |request| {
        counts.anything.fetch_add(1, Ordering::SeqCst);
        if !request.uri().path().ends_with("/statefulsets") {
            return Fate::Answered;
        }
        counts.sets.fetch_add(1, Ordering::SeqCst);
        if counts.is_told.load(Ordering::SeqCst) {
            Fate::Answered
        } else {
            Fate::Refused(500)
        }
    })
    .await;
    let controller = stage.control_through(client, |_| {});
    let endpoints = Endpoints::of(&controller).await;
    // Whoever asks a second time has its first answer.
    let twice = async |count: &AtomicU32| {
        let before = count.load(Ordering::SeqCst);
        stage
            .eventually("it asks twice", async || {
                count.load(Ordering::SeqCst) >= before + 2
            })
            .await;
    };
    twice(&asked.anything).await;
    assert!(!endpoints.is_ready().await, "nobody knows its resources");

    stage.define().await;
    twice(&asked.sets).await;
    assert!(!endpoints.is_ready().await, "not everything was listed");

    asked.is_told.store(true, Ordering::SeqCst);
    let is_ready = async || endpoints.is_ready().await;
    stage.eventually("it is ready", is_ready).await;

    stage.server.stop();
    let before = asked.anything.load(Ordering::SeqCst);
    let notices = async || asked.anything.load(Ordering::SeqCst) >= before + 2;
    stage.eventually("it asks in vain", notices).await;
    assert_eq!(endpoints.code("/healthz").await, 200);
    assert_eq!(endpoints.code("/livez").await, 200);
    controller.kill();
}
