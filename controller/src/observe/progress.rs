//! Progress of a restore, read from the log of its Job.
//!
//! Progress is only reported to users; no decision depends on it. A log that cannot be read (no permission, unreachable
//! kubelet, pod not running) is therefore not an error.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use kube::{Client, ResourceExt};
use mainstay_telemetry::ErrorChain;
use tracing::debug;

use crate::caches::Stores;
use crate::caches::packed::{JOB_UID_LABEL, find_all};

/// Lines to read from the end: warnings or the result may follow the last progress line.
const TAIL_LINES: i64 = 20;
/// Upper bound of a read, whatever the program logs.
const MAX_LOG_BYTES: i64 = 64 << 10;
/// An unreachable kubelet must not delay the reconcile.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// Name of the running pod of a Job.
pub(crate) fn find_running_pod(stores: &Stores, namespace: &str, job: &str) -> Option<String> {
    let pods = find_all::<Pod>(&stores.pods, |pod| {
        let labels = pod.labels.as_ref();
        let job_uid = labels.and_then(|labels| labels.get(JOB_UID_LABEL));
        pod.namespace.as_deref() == Some(namespace) && job_uid.is_some_and(|uid| uid == job)
    });
    let is_running = |pod: &&Pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    pods.iter().find(is_running).map(ResourceExt::name_any)
}

/// The end of the log of a pod; `None` when it cannot be read in time.
pub(crate) async fn read_log(client: &Client, namespace: &str, pod: &str) -> Option<String> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let end = LogParams {
        tail_lines: Some(TAIL_LINES),
        limit_bytes: Some(MAX_LOG_BYTES),
        ..LogParams::default()
    };
    match tokio::time::timeout(LOG_TIMEOUT, pods.logs(pod, &end)).await {
        Ok(Ok(log)) => Some(log),
        Ok(Err(error)) => {
            debug!(pod, error = %ErrorChain(&error), "failed to read restore log");
            None
        }
        Err(_) => {
            debug!(pod, "reading restore log timed out");
            None
        }
    }
}
