//! Asks a sidecar for a full snapshot and does not wait: a task does, and what became of it is seen in the next pass.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mainstay_crds::Etcd;
use mainstay_manifests::Names;
use mainstay_telemetry::ErrorChain;
use reqwest::{Certificate, StatusCode};
use tracing::{info, warn};

use super::Work;
use crate::cadence;
use crate::context::Context;
use crate::observe::dial::read_ca;
use crate::observe::{DialError, Observation, Ordinal, SnapshotRequest};

/// When the resource does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(15);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of a refusal is told.
const MAX_MESSAGE_CHARS: usize = 300;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// No pod has an address.
    #[error("no sidecar can be reached")]
    NoReachableSidecar,
    /// The certificates cannot be had.
    #[error("prepare the connection to the sidecar")]
    Certificates {
        /// Which and why.
        source: DialError,
    },
    /// The connection cannot be made as configured.
    #[error("prepare the request for a snapshot")]
    Prepare {
        /// Why.
        source: reqwest::Error,
    },
    /// The sidecar did not answer.
    #[error("ask {url} for a snapshot")]
    Send {
        /// Whom.
        url: String,
        /// What went wrong.
        source: reqwest::Error,
    },
    /// The sidecar refused.
    #[error("the sidecar answered {status}: {message}")]
    Refused {
        /// With this code.
        status: StatusCode,
        /// And these words.
        message: String,
    },
}

/// Starts the request in a task of its own.
pub(super) fn request_snapshot(ctx: &Context, work: Work<'_>) {
    let key = work.desired.key();
    ctx.local.set_snapshot_request(&key, SnapshotRequest::Running);
    let (memory, client, poke) = (ctx.local.clone(), ctx.client.clone(), ctx.trigger.clone());
    let (etcd, observed) = (work.etcd.clone(), work.objects.observation.clone());
    ctx.background_tasks.spawn(async move {
        let outcome = call_sidecar(&client, &etcd, &observed, SidecarRequest::full_snapshot(&etcd)).await;
        let state = match outcome {
            Ok(_) => {
                info!(cluster = %key, "a full snapshot was taken before a change");
                SnapshotRequest::Taken {
                    at: Timestamp::now(),
                }
            }
            Err(error) => {
                let why = ErrorChain(&error).to_string();
                warn!(cluster = %key, error = %why, "no snapshot was taken");
                let pause = SignedDuration::try_from(cadence::SNAPSHOT_RETRY).unwrap_or_default();
                let retry_at = Timestamp::now()
                    .checked_add(pause)
                    .unwrap_or(Timestamp::MAX);
                SnapshotRequest::Failed { reason: why, retry_at }
            }
        };
        memory.set_snapshot_request(&key, state);
        poke.request(&key);
    });
}

/// What a sidecar is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SidecarRequest {
    /// The path and what follows it.
    pub(crate) path: &'static str,
    /// How long it may take.
    pub(crate) timeout: Duration,
}

impl SidecarRequest {
    /// A full snapshot, within the time the resource gives.
    pub(crate) fn full_snapshot(etcd: &Etcd) -> Self {
        let limit = etcd.spec.backup.etcd_snapshot_timeout.as_ref();
        let limit = limit
            .and_then(|span| span.to_duration().ok())
            .unwrap_or(DEFAULT_TIMEOUT);
        Self {
            path: "/snapshot/full",
            timeout: limit,
        }
    }
}

/// Asks a sidecar and waits for its answer, a JSON document.
pub(crate) async fn call_sidecar(
    client: &Client,
    etcd: &Etcd,
    observed: &Observation,
    ask: SidecarRequest,
) -> Result<serde_json::Value, SnapshotError> {
    let names = Names::new(etcd);
    let (ordinal, address) = select_sidecar(observed).ok_or(SnapshotError::NoReachableSidecar)?;
    let host = names.client_host();
    let pod = observed.pods.get(&ordinal);
    let wanted = etcd
        .spec
        .backup
        .port
        .and_then(|port| u16::try_from(port).ok());
    let port = pod
        .and_then(|pod| pod.listeners.backup_port)
        .or(wanted)
        .unwrap_or(8080);
    let mounted = pod.and_then(|pod| pod.listeners.backup_tls.as_ref());
    // The spec knows the key too, as long as it means the same secret.
    let own = etcd.spec.backup.tls.as_ref();
    let tls = mounted.map(|tls| own.filter(|own| own.ca.name == tls.ca.name).unwrap_or(tls));
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ask.timeout)
        .no_proxy()
        .resolve(&host, (address, port).into());
    if let Some(tls) = tls {
        let secrets = Api::<Secret>::namespaced(client.clone(), names.namespace);
        let ca = read_ca(&secrets, tls)
            .await
            .map_err(|source| SnapshotError::Certificates { source })?;
        let bundle = Certificate::from_pem_bundle(&ca)
            .map_err(|source| SnapshotError::Prepare { source })?;
        builder = builder.tls_certs_only(bundle);
    }
    let http = builder
        .build()
        .map_err(|source| SnapshotError::Prepare { source })?;
    let url = format!("{scheme}://{host}:{port}{}", ask.path);
    let answer = http.post(&url).send().await;
    let answer = answer.map_err(|source| SnapshotError::Send {
        url: url.clone(),
        source,
    })?;
    let status = answer.status();
    let words = answer.text().await.unwrap_or_default();
    if status.is_success() {
        return Ok(serde_json::from_str(&words).unwrap_or_default());
    }
    let words = words.chars().take(MAX_MESSAGE_CHARS).collect();
    Err(SnapshotError::Refused { status, message: words })
}

/// The leader's sidecar, else any: it passes the request on.
fn select_sidecar(observed: &Observation) -> Option<(Ordinal, std::net::IpAddr)> {
    let leads = |ordinal: &Ordinal| {
        let lease = observed
            .leases
            .get(ordinal)
            .and_then(|lease| lease.holder.as_ref());
        lease.is_some_and(|held| held.is_leader)
    };
    let reachable = observed.pods.iter().filter_map(|(ordinal, pod)| {
        let address = pod.address.as_ref()?.parse().ok()?;
        (pod.is_ready && !pod.is_deleting).then_some((*ordinal, address))
    });
    reachable.max_by_key(|(ordinal, _)| leads(ordinal))
}
