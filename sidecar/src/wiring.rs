//! Where one part's port meets another part.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, Member};
use futures::FutureExt;
use futures::future::BoxFuture;
use mainstay_archive::retention::Garbage;
use mainstay_ids::MemberId;
use mainstay_telemetry::Chain;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use url::Url;

use crate::bucket::Bucket;
use crate::etcd::{Etcd, EtcdError, Step, within};
use crate::http::{FindLeader, LeaderError};
use crate::kubernetes::{self, LeaseMetrics, PinReader};
use crate::maintenance::{Connect, ConnectError};
use crate::metrics::{Collected, LeaseKind, Metrics};
use crate::retention::{
    Outcome, Pinned, Pins, PinsError, Retention, RetentionConfig, RetentionMetrics,
};
use crate::session::Duty;

/// How long to wait before a store that cannot be opened is tried again.
const OPEN_AGAIN: Duration = Duration::from_secs(30);

/// Finds the leader through the own member.
pub(crate) struct LeaderAt {
    /// The etcd beside this sidecar.
    pub(crate) etcd: Etcd,
    /// How long to wait for an answer.
    pub(crate) patience: Duration,
}

#[async_trait]
impl FindLeader for LeaderAt {
    async fn leader_client_url(&self) -> Result<Url, LeaderError> {
        let ask = |error: EtcdError| LeaderError::Ask {
            source: Box::new(error),
        };
        let sighting = self.etcd.sight(self.patience).await.map_err(ask)?;
        let leader = sighting.leader.ok_or(LeaderError::NoLeader)?;
        let mut client = self.etcd.own().await.map_err(ask)?;
        let listed = within(self.patience, Step::Members, client.member_list());
        let listed = listed.await.map_err(ask)?;
        let member = listed.members().iter().find(|m| MemberId(m.id()) == leader);
        let mut urls = member.into_iter().flat_map(Member::client_urls);
        let url = urls.find_map(|url| Url::parse(url).ok());
        url.ok_or(LeaderError::NoClientUrl { leader })
    }
}

/// The ways maintenance takes to the cluster.
pub(crate) struct Ways(pub(crate) Etcd);

#[async_trait]
impl Connect for Ways {
    async fn own(&self) -> Result<Client, ConnectError> {
        let client = self.0.own().await;
        client.map_err(|error| unreachable_at("the own member", error))
    }

    async fn to(&self, url: &str) -> Result<Client, ConnectError> {
        let parsed = Url::parse(url).map_err(|error| ConnectError {
            endpoint: url.to_owned(),
            source: etcd_client::Error::InvalidArgs(error.to_string()),
        })?;
        let client = self.0.to(&parsed).await;
        client.map_err(|error| unreachable_at(url, error))
    }

    async fn cluster(&self) -> Result<Client, ConnectError> {
        let client = self.0.cluster().await;
        client.map_err(|error| unreachable_at("the cluster", error))
    }
}

fn unreachable_at(endpoint: &str, error: EtcdError) -> ConnectError {
    let source = match error {
        EtcdError::Refused { source, .. } => *source,
        other => etcd_client::Error::InvalidArgs(Chain(&other).to_string()),
    };
    ConnectError {
        endpoint: endpoint.to_owned(),
        source,
    }
}

/// Retention, while this sidecar leads.
pub(crate) struct RetentionDuty {
    pub(crate) bucket: Bucket,
    pub(crate) config: RetentionConfig,
    pub(crate) pins: Arc<dyn Pins>,
    pub(crate) metrics: Metrics,
}

impl Duty for RetentionDuty {
    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        async move {
            while !stop.is_cancelled() {
                match self.bucket.store().await {
                    Ok(store) => {
                        let metrics = Arc::new(self.metrics.clone());
                        let pins = Arc::clone(&self.pins);
                        let retention = Retention::new(store, self.config, pins, metrics);
                        return retention.run(stop).await;
                    }
                    Err(error) => warn!(error = %Chain(&error), "retention waits for the store"),
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(OPEN_AGAIN) => {}
                }
            }
        }
        .boxed()
    }
}

impl RetentionMetrics for Metrics {
    fn deletion(&self, kind: Garbage, outcome: Outcome) {
        let what = match kind {
            Garbage::Full => Collected::Full,
            Garbage::Delta => Collected::Delta,
            Garbage::Chunk => Collected::Chunk,
        };
        match outcome {
            Outcome::Deleted => self.collected(what, true),
            Outcome::Failed => self.collected(what, false),
            Outcome::Locked => {} // as it should be
        }
    }

    fn damaged(&self, objects: usize) {
        self.damaged_objects(objects);
    }
}

/// Pins in the coordination ConfigMap.
pub(crate) struct ConfigMapPins {
    pub(crate) reader: PinReader,
    pub(crate) bucket: Bucket,
    pub(crate) name: String,
}

#[async_trait]
impl Pins for ConfigMapPins {
    async fn pinned(&self) -> Result<Pinned, PinsError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| PinsError {
            place: format!("ConfigMap {}", self.name),
            source,
        };
        let listed = self.bucket.list().await;
        let listed = listed.map_err(|error| failed(Box::new(error)))?;
        let keys: Vec<&str> = listed
            .fulls
            .iter()
            .chain(&listed.deltas)
            .map(|object| object.key.as_str())
            .collect();
        let pinned = self.reader.pinned_keys(keys).await;
        let pinned = pinned.map_err(|error| failed(Box::new(error)))?;
        Ok(Pinned(pinned))
    }
}

impl LeaseMetrics for Metrics {
    fn lease_updated(&self, lease: kubernetes::LeaseKind, succeeded: bool) {
        let lease = match lease {
            kubernetes::LeaseKind::Member => LeaseKind::Member,
            kubernetes::LeaseKind::FullSnapshot => LeaseKind::FullSnapshot,
            kubernetes::LeaseKind::DeltaSnapshot => LeaseKind::DeltaSnapshot,
        };
        self.lease_updated(lease, succeeded);
    }
}
