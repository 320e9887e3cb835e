//! A server under test with a fake snapshotter and a fake leader lookup.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_archive::catalogue::{Catalogue, ListedObject};
use mainstay_sidecar::http::{
    FindLeader, HttpBackend, HttpConfig, HttpLimits, LeaderError, Listeners,
};
use mainstay_sidecar::metrics::SidecarMetrics;
use mainstay_sidecar::snapshotter::{Finality, SnapshotRequestError, Snapshotter};
use mainstay_sidecar::state::{SidecarRole, SidecarState, StateSender, StoredSnapshot};
use reqwest::{Client, Method, Response};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use url::Url;

/// Longer than any step takes, so that a hang fails the test.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(45);

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A snapshotter whose results a test controls.
#[derive(Debug)]
pub(crate) struct FakeSnapshotter {
    /// Permits to finish a snapshot.
    pub(crate) gate: Semaphore,
    pub(crate) error: Mutex<Option<SnapshotRequestError>>,
    pub(crate) keys: Mutex<Vec<String>>,
    pub(crate) requests: Mutex<Vec<Finality>>,
    running: AtomicUsize,
    pub(crate) max_running: AtomicUsize,
}

impl Default for FakeSnapshotter {
    fn default() -> Self {
        Self {
            gate: Semaphore::new(1000),
            error: Mutex::default(),
            keys: Mutex::default(),
            requests: Mutex::default(),
            running: AtomicUsize::default(),
            max_running: AtomicUsize::default(),
        }
    }
}

impl FakeSnapshotter {
    /// A snapshotter whose snapshots each wait for a permit.
    pub(crate) fn new_blocked() -> Self {
        Self {
            gate: Semaphore::new(0),
            ..Self::default()
        }
    }

    fn check_error(&self) -> Result<(), SnapshotRequestError> {
        self.error.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    async fn run_snapshot(&self) -> Result<(), SnapshotRequestError> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_running.fetch_max(running, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.check_error()
    }
}

pub(crate) fn stored_snapshot(name: &str) -> StoredSnapshot {
    StoredSnapshot {
        name: name.parse().unwrap(),
        key: format!("main/v2/{name}"),
        size: 77,
    }
}

#[async_trait]
impl Snapshotter for FakeSnapshotter {
    async fn take_full(&self, finality: Finality) -> Result<StoredSnapshot, SnapshotRequestError> {
        self.requests.lock().unwrap().push(finality);
        self.run_snapshot().await?;
        Ok(stored_snapshot(match finality {
            Finality::Ordinary => "Full-00000000-00000100-1794795243.gz",
            Finality::Final => "Full-00000000-00000100-1794795243.gz.final",
        }))
    }

    async fn take_delta(&self) -> Result<Option<StoredSnapshot>, SnapshotRequestError> {
        self.run_snapshot().await?;
        let has_events = !self.keys.lock().unwrap().is_empty();
        Ok(has_events.then(|| stored_snapshot("Incr-00000101-00000120-1794795250.gz")))
    }

    async fn list_snapshots(&self) -> Result<Catalogue, SnapshotRequestError> {
        self.check_error()?;
        let keys = self.keys.lock().unwrap().clone();
        let listed = keys.into_iter().map(|key| ListedObject {
            key,
            size: 1,
            modified: jiff::Timestamp::UNIX_EPOCH,
        });
        Ok(Catalogue::from_listing("main", listed.collect()))
    }
}

/// Returns the configured leader, or none.
#[derive(Debug, Default)]
pub(crate) struct FakeLeaderFinder(pub(crate) Mutex<Option<Url>>);

#[async_trait]
impl FindLeader for FakeLeaderFinder {
    async fn find_leader_url(&self) -> Result<Url, LeaderError> {
        let url = self.0.lock().unwrap().clone();
        url.ok_or(LeaderError::NoLeader)
    }
}

/// A server under test.
pub(crate) struct TestHttpServer {
    pub(crate) port: u16,
    pub(crate) state_tx: StateSender,
    pub(crate) snapshotter: Arc<FakeSnapshotter>,
    pub(crate) leader_finder: Arc<FakeLeaderFinder>,
    pub(crate) metrics: SidecarMetrics,
    pub(crate) cancel: CancellationToken,
    pub(crate) task: JoinHandle<()>,
    address: IpAddr,
    scheme: &'static str,
}

/// Limits with short timeouts.
pub(crate) fn short_limits() -> HttpLimits {
    HttpLimits {
        drain_timeout: Duration::from_millis(500),
        leader_timeout: Duration::from_secs(5),
        ..HttpLimits::default()
    }
}

/// Listens on a free port of the loopback interface.
pub(crate) fn test_config() -> HttpConfig {
    HttpConfig {
        listen_address: Some(LOCALHOST),
        port: 0,
        limits: short_limits(),
        ..HttpConfig::default()
    }
}

pub(crate) fn leader_state() -> SidecarState {
    SidecarState {
        role: SidecarRole::Leader,
        is_etcd_reachable: true,
        has_store: true,
        ..SidecarState::default()
    }
}

pub(crate) fn follower_state() -> SidecarState {
    SidecarState {
        role: SidecarRole::Follower,
        ..leader_state()
    }
}

impl TestHttpServer {
    /// A leading sidecar with a working snapshotter.
    pub(crate) async fn start_leader(config: HttpConfig) -> Self {
        Self::start(config, leader_state(), FakeSnapshotter::default()).await
    }

    pub(crate) async fn start(
        config: HttpConfig,
        state: SidecarState,
        snapshotter: FakeSnapshotter,
    ) -> Self {
        let listeners = Listeners::bind(&config).await.unwrap();
        let port = listeners.port();
        let (state_tx, state_rx) = watch::channel(state);
        let (snapshotter, leader_finder) =
            (Arc::new(snapshotter), Arc::new(FakeLeaderFinder::default()));
        let (metrics, cancel) = (SidecarMetrics::new().unwrap(), CancellationToken::new());
        let parts = HttpBackend {
            state_rx,
            snapshotter: snapshotter.clone(),
            leader_finder: leader_finder.clone(),
            metrics: metrics.clone(),
        };
        let address = config.listen_address.unwrap_or(LOCALHOST);
        let scheme = if config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let serving = listeners.serve(config, parts, cancel.clone());
        let task = tokio::spawn(async move { serving.await.unwrap() });
        Self {
            port,
            state_tx,
            snapshotter,
            leader_finder,
            metrics,
            cancel,
            task,
            address,
            scheme,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}:{}{path}", self.scheme, self.address, self.port)
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.request(Method::GET, path).await
    }

    pub(crate) async fn request(&self, method: Method, path: &str) -> TestResponse {
        let sent = Client::new().request(method, self.url(path)).send();
        TestResponse::read(timeout(TEST_TIMEOUT, sent).await.unwrap().unwrap()).await
    }

    /// Stops the server and waits for its end.
    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        timeout(TEST_TIMEOUT, self.task).await.unwrap().unwrap();
    }
}

/// A response, read completely.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl TestResponse {
    pub(crate) async fn read(response: Response) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: response.text().await.unwrap(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

/// Polls until a condition holds.
pub(crate) async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = tokio::time::Instant::now();
    while !condition() {
        assert!(
            started.elapsed() < TEST_TIMEOUT,
            "timed out waiting for: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
