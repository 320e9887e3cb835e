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

use super::server::Place;

/// What is changed: an annotation of the clients' Service, since that restarts nobody.
const NOTE: &str = "bench.example.com/change";
/// How long a change may take before the bench gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// Between two looks whether a change is told.
const POLL: Duration = Duration::from_millis(200);

/// When the next ones change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Once the statuses tell of the last ones.
    Told,
    /// As soon as the last ones were acted on, while their statuses are still to be written.
    Acted,
}

/// Changes so many resources at once, again and again. Returns how long each took to be acted on, sorted.
pub(super) async fn measure(
    client: &Client,
    places: &[Place],
    (at_once, rounds): (usize, usize),
    next: Next,
) -> anyhow::Result<Vec<Duration>> {
    let (tell, mut seen) = mpsc::unbounded_channel();
    let services = Api::<Service>::all(client.clone());
    let labels = "app.kubernetes.io/managed-by=etcd-druid";
    let watching = tokio::spawn(async move {
        let config = watcher::Config::default().labels(labels);
        let mut changes = pin!(
            watcher(services, config)
                .default_backoff()
                .applied_objects()
        );
        while let Ok(Some(service)) = changes.try_next().await {
            let Some(value) = service.annotations().get(NOTE) else {
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
        let from = round * at_once;
        let chosen = || {
            let cycle = places.iter().cycle().skip(from);
            cycle.take(at_once.min(places.len()))
        };
        let begun = try_join_all(chosen().map(|place| change(client, place, &value))).await?;
        let mut waiting: HashMap<Place, Instant> = begun.into_iter().collect();
        while !waiting.is_empty() {
            let next = timeout(PATIENCE, seen.recv()).await;
            let (place, found, at) = next
                .with_context(|| format!("{} changes had no effect", waiting.len()))?
                .context("the watch ended")?;
            if found == value
                && let Some(sent) = waiting.remove(&place)
            {
                took.push(at.duration_since(sent));
            }
        }
        if next == Next::Told {
            let told = try_join_all(chosen().map(|place| told(client, place)));
            timeout(PATIENCE, told)
                .await
                .context("what was done is told")??;
        }
    }
    watching.abort();
    took.sort_unstable();
    Ok(took)
}

/// Changes one resource. Returns the Service it is seen in, and when it was sent.
async fn change(
    client: &Client,
    (namespace, name): &Place,
    value: &str,
) -> anyhow::Result<(Place, Instant)> {
    let patch =
        json!({ "spec": { "etcd": { "clientService": { "annotations": { NOTE: value } } } } });
    let etcds = Api::<Etcd>::namespaced(client.clone(), namespace);
    let sent = Instant::now();
    etcds
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .context("change an Etcd")?;
    Ok(((namespace.clone(), format!("{name}-client")), sent))
}

/// Waits until the status of a resource is that of its present spec.
async fn told(client: &Client, (namespace, name): &Place) -> anyhow::Result<()> {
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
        sleep(POLL).await;
    }
}
