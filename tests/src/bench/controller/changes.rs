//! Measures the time from a spec change to its effect, when many resources change at once.

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use futures::TryStreamExt;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use mainstay_crds::Etcd;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::server::NamespacedName;

/// The changed field: an annotation of the client Service, which restarts no pod.
const CHANGE_ANNOTATION: &str = "bench.example.com/change";
/// Timeout of a change.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Interval of polls of the status.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// When the next resources change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangePacing {
    /// When the statuses report the last changes as reconciled.
    AfterStatus,
    /// As soon as the last changes took effect, while their statuses are still being written.
    AfterAction,
}

/// Changes many resources at once, repeatedly. Returns the sorted times from change to effect.
pub(super) async fn measure(
    client: &Client,
    places: &[NamespacedName],
    (concurrently, rounds): (usize, usize),
    next: ChangePacing,
) -> anyhow::Result<Vec<Duration>> {
    let (tell, mut observations) = mpsc::unbounded_channel();
    let services = Api::<Service>::all(client.clone());
    let labels = "app.kubernetes.io/managed-by=etcd-druid";
    let task = tokio::spawn(async move {
        let config = watcher::Config::default().labels(labels);
        let mut changes = pin!(
            watcher(services, config)
                .default_backoff()
                .applied_objects()
        );
        while let Ok(Some(service)) = changes.try_next().await {
            let Some(value) = service.annotations().get(CHANGE_ANNOTATION) else {
                continue;
            };
            let place = (service.namespace().unwrap_or_default(), service.name_any());
            if tell.send((place, value.clone(), Instant::now())).is_err() {
                return;
            }
        }
    });
    let mut took = Vec::new();
    for round in 0..rounds {
        let value = format!("{next:?}-{round}");
        let from = round * concurrently;
        let chosen = || {
            let cycle = places.iter().cycle().skip(from);
            cycle.take(concurrently.min(places.len()))
        };
        let begun = try_join_all(chosen().map(|place| apply_change(client, place, &value))).await?;
        let mut waiting: HashMap<NamespacedName, Instant> = begun.into_iter().collect();
        while !waiting.is_empty() {
            let next = timeout(TIMEOUT, observations.recv()).await;
            let (place, found, at) = next
                .with_context(|| format!("{} changes took no effect in time", waiting.len()))?
                .context("watch of Services ended")?;
            if found == value
                && let Some(sent) = waiting.remove(&place)
            {
                took.push(at.duration_since(sent));
            }
        }
        if next == ChangePacing::AfterStatus {
            let reported = try_join_all(chosen().map(|place| wait_for_status(client, place)));
            timeout(TIMEOUT, reported)
                .await
                .context("statuses did not report the changes in time")??;
        }
    }
    task.abort();
    took.sort_unstable();
    Ok(took)
}

/// Changes one resource. Returns its client Service and the time of the request.
async fn apply_change(
    client: &Client,
    (namespace, name): &NamespacedName,
    value: &str,
) -> anyhow::Result<(NamespacedName, Instant)> {
    let patch = json!({ "spec": { "etcd": { "clientService": { "annotations": { CHANGE_ANNOTATION: value } } } } });
    let etcds = Api::<Etcd>::namespaced(client.clone(), namespace);
    let sent = Instant::now();
    etcds
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .context("failed to change an Etcd")?;
    Ok(((namespace.clone(), format!("{name}-client")), sent))
}

/// Waits until the status of a resource has observed its current spec.
async fn wait_for_status(
    client: &Client,
    (namespace, name): &NamespacedName,
) -> anyhow::Result<()> {
    let etcds = Api::<Etcd>::namespaced(client.clone(), namespace);
    loop {
        let etcd = etcds.get(name).await.context("failed to read an Etcd")?;
        let observed = etcd
            .status
            .as_ref()
            .and_then(|status| status.observed_generation);
        if observed == etcd.metadata.generation {
            return Ok(());
        }
        sleep(POLL_INTERVAL).await;
    }
}
