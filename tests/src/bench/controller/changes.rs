//! How soon the controller acts on a changed spec, when many change at once.

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

/// What is changed: an annotation of the clients' Service, since that restarts nobody.
const CHANGE_ANNOTATION: &str = "bench.example.com/change";
/// How long a change may take before the bench gives up.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Between two looks whether a change is told.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// When the next ones change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangePacing {
    /// Once the statuses tell of the last ones.
    AfterStatus,
    /// As soon as the last ones were acted on, while their statuses are still to be written.
    AfterAction,
}

/// Changes so many resources at once, again and again. Returns how long each took to be acted on, sorted.
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
                .with_context(|| format!("{} changes had no effect", waiting.len()))?
                .context("the watch ended")?;
            if found == value
                && let Some(sent) = waiting.remove(&place)
            {
                took.push(at.duration_since(sent));
            }
        }
        if next == ChangePacing::AfterStatus {
            let told = try_join_all(chosen().map(|place| wait_for_status(client, place)));
            timeout(TIMEOUT, told)
                .await
                .context("what was done is told")??;
        }
    }
    task.abort();
    took.sort_unstable();
    Ok(took)
}

/// Changes one resource. Returns the Service it is seen in, and when it was sent.
async fn apply_change(
    client: &Client,
    (namespace, name): &NamespacedName,
    value: &str,
) -> anyhow::Result<(NamespacedName, Instant)> {
    let patch =
        json!({ "spec": { "etcd": { "clientService": { "annotations": { CHANGE_ANNOTATION: value } } } } });
    let etcds = Api::<Etcd>::namespaced(client.clone(), namespace);
    let sent = Instant::now();
    etcds
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .context("change an Etcd")?;
    Ok(((namespace.clone(), format!("{name}-client")), sent))
}

/// Waits until the status of a resource is that of its present spec.
async fn wait_for_status(client: &Client, (namespace, name): &NamespacedName) -> anyhow::Result<()> {
    let etcds = Api::<Etcd>::namespaced(client.clone(), namespace);
    loop {
        let etcd = etcds.get(name).await.context("look at an Etcd")?;
        let observed = etcd
            .status
            .as_ref()
            .and_then(|told| told.observed_generation);
        if observed == etcd.metadata.generation {
            return Ok(());
        }
        sleep(POLL_INTERVAL).await;
    }
}
