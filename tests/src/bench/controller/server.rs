//! Creates the Etcds on the API server and reads its write counters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::{TryStreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use mainstay_crds::{Etcd, OperationState};
use mainstay_testkit::kube::ApiServer;
use serde_json::json;
use tokio::time::sleep;

use super::process::ControllerProcess;
use super::simulator::ClusterSimulator;

/// Number of namespaces of the Etcds.
const NAMESPACE_COUNT: usize = 10;
/// Parallel requests of the benchmark.
const CONCURRENCY: usize = 8;
/// Timeout of the creation of all clusters.
const TIMEOUT: Duration = Duration::from_mins(40);
/// Time without a write after which the controller counts as idle.
const QUIET_PERIOD: Duration = Duration::from_secs(15);
/// Name of the Secret for the store.
const STORE_SECRET: &str = "store";
/// Resources a controller writes.
const WRITTEN_RESOURCES: [&str; 14] = [
    "configmaps",
    "etcds",
    "events",
    "jobs",
    "leases",
    "persistentvolumeclaims",
    "poddisruptionbudgets",
    "pods",
    "rolebindings",
    "roles",
    "secrets",
    "serviceaccounts",
    "services",
    "statefulsets",
];

/// A resource by namespace and name.
pub(super) type NamespacedName = (String, String);

pub(super) struct BenchApiServer {
    pub(super) client: Client,
}

/// Writes so far, as counted by the API server.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteCounts {
    by_resource: BTreeMap<String, u64>,
    /// Lease renewals of the benchmark.
    pub(super) renewals: u64,
}

impl WriteCounts {
    /// Writes of the controller between two moments; in between the benchmark only renewed Leases.
    pub(super) fn since(&self, before: &Self) -> Self {
        let mut by_resource = self.by_resource.clone();
        for (resource, count) in &mut by_resource {
            *count -= before
                .by_resource
                .get(resource)
                .copied()
                .unwrap_or_default();
        }
        let renewals = self.renewals - before.renewals;
        if let Some(leases) = by_resource.get_mut("leases") {
            *leases = leases.saturating_sub(renewals);
        }
        by_resource.retain(|_, count| *count > 0);
        Self {
            by_resource,
            renewals: 0,
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.by_resource.values().sum()
    }

    pub(super) fn into_resources(self) -> Vec<(String, u64)> {
        self.by_resource.into_iter().collect()
    }
}

impl BenchApiServer {
    pub(super) async fn new(server: &ApiServer) -> Self {
        Self {
            client: server.client().await,
        }
    }

    /// Creates Etcds of three members.
    pub(super) async fn create_etcds(
        &self,
        server: &ApiServer,
        count: usize,
    ) -> anyhow::Result<Vec<NamespacedName>> {
        let mut namespaces = Vec::new();
        for _ in 0..NAMESPACE_COUNT {
            let namespace = server.create_namespace().await;
            let secrets = Api::<Secret>::namespaced(self.client.clone(), &namespace);
            let secret = json!({ "metadata": { "name": STORE_SECRET } });
            let secret = serde_json::from_value(secret).context("failed to build a Secret")?;
            let created = secrets.create(&PostParams::default(), &secret).await;
            created.context("failed to create a Secret")?;
            namespaces.push(namespace);
        }
        let places =
            (0..count).map(|n| (namespaces[n % NAMESPACE_COUNT].clone(), format!("etcd-{n}")));
        let places: Vec<NamespacedName> = places.collect();
        stream::iter(places.iter().map(Ok::<_, anyhow::Error>))
            .try_for_each_concurrent(CONCURRENCY, |(namespace, name)| async move {
                let store = json!({
                    "provider": "aws", "container": "backups", "prefix": format!("{namespace}/{name}"),
                    "secretRef": { "name": STORE_SECRET },
                });
                let etcd = json!({
                    "apiVersion": "druid.gardener.cloud/v1alpha1", "kind": "Etcd",
                    "metadata": { "name": name, "namespace": namespace },
                    "spec": {
                        "replicas": 3, "labels": { "app": "etcd" },
                        "backup": { "store": store, "deltaSnapshotPeriod": "5m" },
                        "etcd": { "resources": { "requests": { "cpu": "200m", "memory": "500Mi" } } },
                    },
                });
                let etcd: Etcd = serde_json::from_value(etcd).context("failed to build an Etcd")?;
                let etcds = Api::namespaced(self.client.clone(), namespace);
                let created = etcds.create(&PostParams::default(), &etcd).await;
                created.context("failed to create an Etcd").map(drop)
            })
            .await?;
        Ok(places)
    }

    /// Waits until every Etcd is reconciled. Returns the time since the start of the controller.
    pub(super) async fn wait_until_settled(
        &self,
        places: &[NamespacedName],
        controller: &mut ControllerProcess,
    ) -> anyhow::Result<Duration> {
        loop {
            controller.expect_running()?;
            let settled = self.count_settled().await?;
            if settled >= places.len() {
                return Ok(controller.started.elapsed());
            }
            super::log_progress(&format!("{settled} of {} clusters created", places.len()));
            ensure!(
                controller.started.elapsed() < TIMEOUT,
                "only {settled} of {} clusters were created in time",
                places.len()
            );
            sleep(Duration::from_secs(5)).await;
        }
    }

    async fn count_settled(&self) -> anyhow::Result<usize> {
        let etcds = Api::<Etcd>::all(self.client.clone());
        let found = etcds.list(&ListParams::default()).await;
        let found = found.context("failed to list Etcds")?;
        let is_settled = |etcd: &&Etcd| {
            let status = etcd.status.as_ref();
            let last = status.and_then(|status| status.last_operation.as_ref());
            last.is_some_and(|last| last.state == OperationState::Succeeded)
                && status.and_then(|status| status.observed_generation) == etcd.metadata.generation
        };
        Ok(found.items.iter().filter(is_settled).count())
    }

    /// Waits until the controller has not written for a while.
    pub(super) async fn wait_until_quiet(
        &self,
        world: &ClusterSimulator,
        controller: &mut ControllerProcess,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            controller.expect_running()?;
            let before = self.count_writes(world).await?;
            sleep(QUIET_PERIOD).await;
            let written = self.count_writes(world).await?.since(&before);
            if written.total() == 0 {
                return Ok(());
            }
            ensure!(
                started.elapsed() < TIMEOUT,
                "controller does not stop writing: {written:?}"
            );
        }
    }

    /// The writes so far, read while no renewal is in flight.
    pub(super) async fn count_writes(
        &self,
        world: &ClusterSimulator,
    ) -> anyhow::Result<WriteCounts> {
        let renewals = world.pause_renewals().await;
        let request = http::Request::get("/metrics").body(Vec::new());
        let text = self
            .client
            .request_text(request.context("failed to build a request")?)
            .await;
        let text = text.context("failed to read the metrics of the API server")?;
        let mut by_resource: BTreeMap<String, u64> = BTreeMap::new();
        for (resource, count) in text.lines().filter_map(parse_write_metric) {
            *by_resource.entry(resource).or_default() += count;
        }
        Ok(WriteCounts {
            by_resource,
            renewals: *renewals,
        })
    }
}

/// Parses a metric line that counts writes of a resource.
fn parse_write_metric(line: &str) -> Option<(String, u64)> {
    let (labels, count) = line
        .strip_prefix("apiserver_request_total{")?
        .rsplit_once("} ")?;
    let value = |label: &str| {
        let (_, rest) = labels.split_once(&format!("{label}=\""))?;
        rest.split('"').next()
    };
    let is_write = matches!(
        value("verb")?,
        "POST" | "PUT" | "PATCH" | "APPLY" | "DELETE" | "DELETECOLLECTION"
    );
    let resource = WRITTEN_RESOURCES
        .into_iter()
        .find(|known| Some(*known) == value("resource"))?;
    let count = count.parse::<f64>().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count, formatted as a float"
    )]
    is_write.then_some((resource.to_owned(), count as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_internal_api_server_writes_are_not_counted() {
        let line = |verb: &str, resource: &str| {
            format!(
                r#"apiserver_request_total{{code="200",component="apiserver",contentType="application/json",dry_run="",group="",resource="{resource}",scope="resource",subresource="status",verb="{verb}",version="v1"}} 12"#
            )
        };
        assert_eq!(
            parse_write_metric(&line("PATCH", "pods")),
            Some(("pods".to_owned(), 12))
        );
        assert_eq!(parse_write_metric(&line("WATCH", "pods")), None);
        assert_eq!(parse_write_metric(&line("PUT", "flowschemas")), None);
    }

    #[test]
    fn lease_renewals_of_the_benchmark_are_not_counted() {
        let writes = |leases: u64, etcds: u64, renewals: u64| WriteCounts {
            by_resource: BTreeMap::from([
                ("leases".to_owned(), leases),
                ("etcds".to_owned(), etcds),
            ]),
            renewals,
        };
        let quiet = writes(110, 5, 60).since(&writes(100, 5, 50));
        assert_eq!(quiet.total(), 0);
        let busy = writes(111, 7, 60).since(&writes(100, 5, 50));
        assert_eq!(busy.total(), 3);
    }
}
