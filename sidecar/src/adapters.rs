//! Adapters: implement the traits of one module with the types of another.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::Client;
use futures::FutureExt;
use futures::future::BoxFuture;
use mainstay_archive::retention::GarbageKind;
use mainstay_etcd::{RequestError, list_members};
use mainstay_telemetry::ErrorChain;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use url::Url;

use crate::backup_store::BackupStore;
use crate::etcd::{EtcdCall, EtcdClient, EtcdError};
use crate::http::{FindLeader, LeaderError};
use crate::kubernetes::{self, LeaseMetrics, PinReader};
use crate::maintenance::{Connect, EtcdConnectError};
use crate::metrics::{GarbageLabel, SidecarMetrics};
use crate::retention::{
    DeletionOutcome, FreezeReason, PinSource, PinnedKeys, PinsError, Retention, RetentionConfig,
    RetentionMetrics, ScopeSource,
};
use crate::session::LeaderTask;

/// Delay before a store that failed to open is opened again.
const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Looks up the leader through this sidecar's member.
pub(crate) struct LeaderFinder {
    pub(crate) etcd: EtcdClient,
    /// Timeout of one request.
    pub(crate) timeout: Duration,
}

#[async_trait]
impl FindLeader for LeaderFinder {
    async fn find_leader_url(&self) -> Result<Url, LeaderError> {
        let ask = |error: EtcdError| LeaderError::Lookup {
            source: Box::new(error),
        };
        let member_status = self.etcd.fetch_status(self.timeout).await.map_err(ask)?;
        let leader = member_status.leader.ok_or(LeaderError::NoLeader)?;
        let mut client = self.etcd.own_client().await.map_err(ask)?;
        let listed = list_members(&mut client, self.timeout).await;
        let listed = listed.map_err(EtcdError::request_failed(EtcdCall::Members));
        let listed = listed.map_err(ask)?;
        let member = listed.iter().find(|member| member.id == leader);
        let mut urls = member.into_iter().flat_map(|member| &member.client_urls);
        let url = urls.find_map(|url| Url::parse(url).ok());
        url.ok_or(LeaderError::NoClientUrl { leader })
    }
}

/// Clients of etcd for maintenance.
pub(crate) struct EtcdConnector(pub(crate) EtcdClient);

#[async_trait]
impl Connect for EtcdConnector {
    async fn connect_own(&self) -> Result<Client, EtcdConnectError> {
        let client = self.0.own_client().await;
        client.map_err(|error| to_connect_error("this sidecar's member", error))
    }

    async fn connect_to(&self, url: &str) -> Result<Client, EtcdConnectError> {
        let parsed = Url::parse(url).map_err(|error| EtcdConnectError {
            endpoint: url.to_owned(),
            source: etcd_client::Error::InvalidArgs(error.to_string()),
        })?;
        let client = self.0.client_for(&parsed).await;
        client.map_err(|error| to_connect_error(url, error))
    }

    async fn connect_cluster(&self) -> Result<Client, EtcdConnectError> {
        let client = self.0.cluster_client().await;
        client.map_err(|error| to_connect_error("the etcd cluster", error))
    }
}

fn to_connect_error(endpoint: &str, error: EtcdError) -> EtcdConnectError {
    let source = match error {
        EtcdError::Request {
            source: RequestError::Failed(source),
            ..
        } => *source,
        other => etcd_client::Error::InvalidArgs(ErrorChain(&other).to_string()),
    };
    EtcdConnectError {
        endpoint: endpoint.to_owned(),
        source,
    }
}

/// Runs retention while this sidecar leads.
pub(crate) struct RetentionTask {
    pub(crate) store: BackupStore,
    pub(crate) config: RetentionConfig,
    pub(crate) scope: Arc<dyn ScopeSource>,
    pub(crate) pins: Arc<dyn PinSource>,
    pub(crate) metrics: SidecarMetrics,
}

impl LeaderTask for RetentionTask {
    fn run(self: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, ()> {
        async move {
            while !stop.is_cancelled() {
                match self.store.open().await {
                    Ok(store) => {
                        let metrics = Arc::new(self.metrics.clone());
                        let (scope, pins) = (Arc::clone(&self.scope), Arc::clone(&self.pins));
                        let retention = Retention::new(store, self.config, scope, pins, metrics);
                        return retention.run(stop).await;
                    }
                    Err(error) => warn!(error = %ErrorChain(&error), "failed to open the object store, garbage collection waits"),
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(STORE_RETRY_INTERVAL) => {}
                }
            }
        }
        .boxed()
    }
}

impl RetentionMetrics for SidecarMetrics {
    fn record_deletion(&self, kind: GarbageKind, outcome: DeletionOutcome) {
        let what = match kind {
            GarbageKind::Full => GarbageLabel::Full,
            GarbageKind::Delta => GarbageLabel::Delta,
            GarbageKind::Chunk => GarbageLabel::Chunk,
        };
        match outcome {
            DeletionOutcome::Deleted => self.count_garbage_collected(what, true),
            DeletionOutcome::Failed => self.count_garbage_collected(what, false),
            DeletionOutcome::Locked => {} // kept on purpose: neither a deletion nor a failure
        }
    }

    fn record_damaged(&self, objects: usize) {
        self.set_damaged_objects(objects);
    }

    fn record_freeze(&self, reason: Option<FreezeReason>) {
        self.set_retention_frozen(reason);
    }
}

/// Reads the pins of the coordination ConfigMap.
pub(crate) struct ConfigMapPins {
    pub(crate) reader: PinReader,
    pub(crate) store: BackupStore,
    pub(crate) name: String,
}

#[async_trait]
impl PinSource for ConfigMapPins {
    async fn read_pins(&self) -> Result<PinnedKeys, PinsError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| PinsError {
            location: format!("ConfigMap {}", self.name),
            source,
        };
        let listed = self.store.list_snapshots().await;
        let listed = listed.map_err(|error| failed(Box::new(error)))?;
        let keys: Vec<&str> = listed
            .fulls
            .iter()
            .chain(&listed.deltas)
            .map(|object| object.key.as_str())
            .collect();
        let pinned = self.reader.read_pinned_keys(keys).await;
        let pinned = pinned.map_err(|error| failed(Box::new(error)))?;
        Ok(PinnedKeys(pinned))
    }
}

impl LeaseMetrics for SidecarMetrics {
    fn record_lease_update(&self, lease: kubernetes::LeaseKind, succeeded: bool) {
        self.count_lease_update(lease, succeeded);
    }
}
