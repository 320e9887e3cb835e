//! A server, what is behind it, and who asks.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_archive::catalogue::{Catalogue, Listed};
use mainstay_sidecar::ask::{AskError, Finality, Snapshots};
use mainstay_sidecar::http::{FindLeader, HttpConfig, LeaderError, Limits, Listeners, Parts};
use mainstay_sidecar::metrics::Metrics;
use mainstay_sidecar::state::{Board, Standing, State, Stored};
use reqwest::{Client, Method, Response};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use url::Url;

/// Longer than anything here takes, so that a hang is a failure.
pub(crate) const SOON: Duration = Duration::from_secs(45);

pub(crate) const LOCALHOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A snapshotter that does as it is told.
#[derive(Debug)]
pub(crate) struct Snapshotter {
    /// Permits to finish a snapshot.
    pub(crate) gate: Semaphore,
    pub(crate) error: Mutex<Option<AskError>>,
    pub(crate) keys: Mutex<Vec<String>>,
    pub(crate) asked: Mutex<Vec<Finality>>,
    running: AtomicUsize,
    pub(crate) most_running: AtomicUsize,
}

impl Default for Snapshotter {
    fn default() -> Self {
        Self {
            gate: Semaphore::new(1000),
            error: Mutex::default(),
            keys: Mutex::default(),
            asked: Mutex::default(),
            running: AtomicUsize::default(),
            most_running: AtomicUsize::default(),
        }
    }
}

impl Snapshotter {
    /// One whose snapshots wait for a permit each.
    pub(crate) fn held() -> Self {
        Self {
            gate: Semaphore::new(0),
            ..Self::default()
        }
    }

    fn failure(&self) -> Result<(), AskError> {
        self.error.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    async fn work(&self) -> Result<(), AskError> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.failure()
    }
}

pub(crate) fn stored(name: &str) -> Stored {
    Stored {
        name: name.parse().unwrap(),
        key: format!("main/v2/{name}"),
        size: 77,
    }
}

#[async_trait]
impl Snapshots for Snapshotter {
    async fn full(&self, finality: Finality) -> Result<Stored, AskError> {
        self.asked.lock().unwrap().push(finality);
        self.work().await?;
        Ok(stored(match finality {
            Finality::Ordinary => "Full-00000000-00000100-1794795243.gz",
            Finality::Final => "Full-00000000-00000100-1794795243.gz.final",
        }))
    }

    async fn delta(&self) -> Result<Option<Stored>, AskError> {
        self.work().await?;
        let has_events = !self.keys.lock().unwrap().is_empty();
        Ok(has_events.then(|| stored("Incr-00000101-00000120-1794795250.gz")))
    }

    async fn list(&self) -> Result<Catalogue, AskError> {
        self.failure()?;
        let keys = self.keys.lock().unwrap().clone();
        let listed = keys.into_iter().map(|key| Listed {
            key,
            size: 1,
            modified: jiff::Timestamp::UNIX_EPOCH,
        });
        Ok(Catalogue::from_listing("main", listed.collect()))
    }
}

/// Knows a leader, or does not.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts(pub(crate) Mutex<Option<Url>>);

#[async_trait]
impl FindLeader for Whereabouts {
    async fn leader_client_url(&self) -> Result<Url, LeaderError> {
        let url = self.0.lock().unwrap().clone();
        url.ok_or(LeaderError::NoLeader)
    }
}

/// A server under test.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) board: Board,
    pub(crate) snapshotter: Arc<Snapshotter>,
    pub(crate) whereabouts: Arc<Whereabouts>,
    pub(crate) metrics: Metrics,
    pub(crate) cancel: CancellationToken,
    pub(crate) ended: JoinHandle<()>,
    address: IpAddr,
    scheme: &'static str,
}

/// Limits with which a test does not wait long.
pub(crate) fn brisk() -> Limits {
    Limits {
        drain_time: Duration::from_millis(500),
        leader_time: Duration::from_secs(5),
        ..Limits::default()
    }
}

/// On a free port of the loopback.
pub(crate) fn config() -> HttpConfig {
    HttpConfig {
        listen: Some(LOCALHOST),
        port: 0,
        limits: brisk(),
        ..HttpConfig::default()
    }
}

pub(crate) fn leading() -> State {
    State {
        standing: Standing::Leader,
        etcd_answers: true,
        has_store: true,
        ..State::default()
    }
}

pub(crate) fn following() -> State {
    State {
        standing: Standing::Follower,
        ..leading()
    }
}

impl Server {
    /// One that leads, with a snapshotter that works.
    pub(crate) async fn leader(config: HttpConfig) -> Self {
        Self::start(config, leading(), Snapshotter::default()).await
    }

    pub(crate) async fn start(config: HttpConfig, known: State, behind: Snapshotter) -> Self {
        let listeners = Listeners::bind(&config).await.unwrap();
        let port = listeners.port();
        let (board, view) = watch::channel(known);
        let (snapshotter, whereabouts) = (Arc::new(behind), Arc::new(Whereabouts::default()));
        let (metrics, cancel) = (Metrics::new().unwrap(), CancellationToken::new());
        let parts = Parts {
            view,
            snapshots: snapshotter.clone(),
            leader: whereabouts.clone(),
            metrics: metrics.clone(),
        };
        let address = config.listen.unwrap_or(LOCALHOST);
        let scheme = if config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let serving = listeners.serve(config, parts, cancel.clone());
        let ended = tokio::spawn(async move { serving.await.unwrap() });
        Self {
            port,
            board,
            snapshotter,
            whereabouts,
            metrics,
            cancel,
            ended,
            address,
            scheme,
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}:{}{path}", self.scheme, self.address, self.port)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path).await
    }

    pub(crate) async fn ask(&self, method: Method, path: &str) -> Answer {
        let sent = Client::new().request(method, self.url(path)).send();
        Answer::from(timeout(SOON, sent).await.unwrap().unwrap()).await
    }

    /// Stops it and returns when it has.
    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        timeout(SOON, self.ended).await.unwrap().unwrap();
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) async fn from(response: Response) -> Self {
        Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: response.text().await.unwrap(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = tokio::time::Instant::now();
    while !is_so() {
        assert!(started.elapsed() < SOON, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
