//! Requests a full snapshot from a sidecar.
//!
//! A background task waits for the response, so a long upload does not hold a reconcile worker. The task records the outcome
//! and triggers the next reconcile.

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
use crate::context::Context;
use crate::intervals;
use crate::model::{Observation, Ordinal, SnapshotRequest};
use crate::observe::DialError;
use crate::observe::dial::read_ca;

/// Timeout of a full snapshot when the spec sets none.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Characters of an error response to keep.
const MAX_MESSAGE_CHARS: usize = 300;

/// Errors of a request to a sidecar.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SnapshotError {
    /// No pod is ready and has an address.
    #[error("no reachable sidecar: no pod is ready")]
    NoReachableSidecar,
    #[error("failed to read the CA of the sidecar")]
    Certificates { source: DialError },
    #[error("failed to create the HTTP client for the sidecar")]
    Prepare { source: reqwest::Error },
    /// The request failed or timed out.
    #[error("failed to request a snapshot at {url}")]
    Send { url: String, source: reqwest::Error },
    /// The sidecar returned an HTTP error.
    #[error("sidecar returned {status}: {message}")]
    Refused {
        status: StatusCode,
        /// Start of the response body.
        message: String,
    },
}

/// Starts the request in a background task.
pub(super) fn request_snapshot(ctx: &Context, work: Work<'_>) {
    let key = work.desired.key();
    // Recorded before the task starts, so that the next reconcile does not request a second snapshot.
    ctx.local
        .set_snapshot_request(&key, SnapshotRequest::Running);
    let (local, client, trigger) = (ctx.local.clone(), ctx.client.clone(), ctx.trigger.clone());
    let (etcd, observed) = (work.etcd.clone(), work.objects.observation.clone());
    ctx.background_tasks.spawn(async move {
        let outcome = call_sidecar(
            &client,
            &etcd,
            &observed,
            SidecarRequest::full_snapshot(&etcd),
        )
        .await;
        let state = match outcome {
            Ok(_) => {
                info!(cluster = %key, "full snapshot taken before a disruptive change");
                SnapshotRequest::Taken {
                    at: Timestamp::now(),
                }
            }
            Err(error) => {
                let reason_text = ErrorChain(&error).to_string();
                warn!(cluster = %key, error = %reason_text, "full snapshot failed");
                let pause = SignedDuration::try_from(intervals::SNAPSHOT_RETRY).unwrap_or_default();
                let retry_at = Timestamp::now()
                    .checked_add(pause)
                    .unwrap_or(Timestamp::MAX);
                SnapshotRequest::Failed {
                    reason: reason_text,
                    retry_at,
                }
            }
        };
        local.set_snapshot_request(&key, state);
        trigger.request(&key);
    });
}

/// A request to a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SidecarRequest {
    /// Path and query.
    pub(crate) path: &'static str,
    pub(crate) timeout: Duration,
}

impl SidecarRequest {
    /// A full snapshot, with the timeout of the spec.
    pub(crate) fn full_snapshot(etcd: &Etcd) -> Self {
        let timeout = etcd.spec.backup.etcd_snapshot_timeout.as_ref();
        let timeout = timeout
            .and_then(|span| span.to_duration().ok())
            .unwrap_or(DEFAULT_TIMEOUT);
        Self {
            path: "/snapshot/full",
            timeout,
        }
    }
}

/// Sends a request to a sidecar and returns its JSON response; `Null` when the body is not JSON.
pub(crate) async fn call_sidecar(
    client: &Client,
    etcd: &Etcd,
    observed: &Observation,
    request: SidecarRequest,
) -> Result<serde_json::Value, SnapshotError> {
    let names = Names::new(etcd);
    let (ordinal, address) = select_sidecar(observed).ok_or(SnapshotError::NoReachableSidecar)?;
    let host = names.client_host();
    let pod = observed.pods.get(&ordinal);
    let spec_port = etcd
        .spec
        .backup
        .port
        .and_then(|port| u16::try_from(port).ok());
    let port = pod
        .and_then(|pod| pod.listeners.backup_port)
        .or(spec_port)
        .unwrap_or(8080);
    // The pod keeps the TLS settings it was created with, even after the spec has changed.
    let mounted = pod.and_then(|pod| pod.listeners.backup_tls.as_ref());
    // A pod does not show the data key of the CA; the spec does, if it references the same Secret.
    let from_spec = etcd.spec.backup.tls.as_ref();
    let tls = mounted.map(|tls| {
        from_spec
            .filter(|spec| spec.ca.name == tls.ca.name)
            .unwrap_or(tls)
    });
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(request.timeout)
        .no_proxy()
        // The certificate names the client Service; the connection goes to the selected pod.
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
    let url = format!("{scheme}://{host}:{port}{}", request.path);
    let response = http.post(&url).send().await;
    let response = response.map_err(|source| SnapshotError::Send {
        url: url.clone(),
        source,
    })?;
    let status = response.status();
    let body = response.text().await.unwrap_or_default();
    if status.is_success() {
        return Ok(serde_json::from_str(&body).unwrap_or_default());
    }
    let body = body.chars().take(MAX_MESSAGE_CHARS).collect();
    Err(SnapshotError::Refused {
        status,
        message: body,
    })
}

/// The sidecar of the leader if it is reachable, else any: the others forward the request to it.
fn select_sidecar(observed: &Observation) -> Option<(Ordinal, std::net::IpAddr)> {
    let is_leader = |ordinal: &Ordinal| {
        let lease = observed
            .leases
            .get(ordinal)
            .and_then(|lease| lease.holder.as_ref());
        lease.is_some_and(|holder| holder.is_leader)
    };
    let reachable = observed.pods.iter().filter_map(|(ordinal, pod)| {
        let address = pod.address.as_ref()?.parse().ok()?;
        (pod.is_ready && !pod.is_deleting).then_some((*ordinal, address))
    });
    reachable.max_by_key(|(ordinal, _)| is_leader(ordinal))
}
