//! Collects what an engineer looks at first when a cluster does not become ready, as one text.
//!
//! ```text
//! namespace ─ list ─► Etcds, pods, Events, logs ─┐
//! controllers ─ list ─► pods, logs of the leader ─┴─► words (pure) ─► one text
//! ```
//!
//! It only reads, every read has a deadline, and a failed read is reported in the text. It never fails.

mod text;

use std::fmt::Display;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, Resource};
use mainstay_crds::Etcd;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::install::{CONTROLLER_NAMESPACE, ELECTION_LEASE};
use text::{
    UnreadyContainer, format_etcd, format_events, format_log_line, format_pods, indent,
    unready_containers,
};

/// Timeout of one request: the API server itself may be down.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Lines shown of each log.
const LOG_LINES: i64 = 15;

/// Describes the Etcds of a namespace and the controllers.
pub async fn diagnose(client: &Client, namespace: &str) -> String {
    let look = Diagnosis {
        client,
        now: Timestamp::now(),
    };
    let mut parts = vec![look.describe_etcds(namespace).await];
    parts.extend(look.describe_namespace(namespace).await);
    if namespace != CONTROLLER_NAMESPACE {
        parts.extend(look.describe_namespace(CONTROLLER_NAMESPACE).await);
    }
    parts.push(look.describe_leader().await);
    parts.join("\n")
}

struct Diagnosis<'a> {
    client: &'a Client,
    now: Timestamp,
}

impl Diagnosis<'_> {
    async fn describe_etcds(&self, namespace: &str) -> String {
        match self.list::<Etcd>(namespace).await {
            Err(why) => format!("Etcds of {namespace}: {why}"),
            Ok(found) if found.is_empty() => format!("Etcds of {namespace}: none"),
            Ok(found) => found.iter().map(format_etcd).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Pods, Events, and logs of containers that are not ready.
    async fn describe_namespace(&self, namespace: &str) -> Vec<String> {
        let found = self.list::<Pod>(namespace).await;
        let table = match &found {
            Err(why) => format!("  {why}"),
            Ok(found) => format_pods(found, self.now),
        };
        let event_time = match self.list::<Event>(namespace).await {
            Err(why) => format!("  {why}"),
            Ok(found) => format_events(&found, self.now),
        };
        let mut parts = vec![
            format!("pods of {namespace}:\n{table}"),
            format!("newest Events of {namespace}:\n{event_time}"),
        ];
        for pod in found.iter().flatten() {
            for UnreadyContainer {
                container,
                restarts,
            } in unready_containers(pod)
            {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                let place = (namespace, name, container.as_str());
                parts.push(self.read_log(place, restarts).await);
            }
        }
        parts
    }

    /// The controller that is the leader, and its log.
    async fn describe_leader(&self) -> String {
        let leases = Api::<Lease>::namespaced(self.client.clone(), CONTROLLER_NAMESPACE);
        let lease = match with_timeout(leases.get(ELECTION_LEASE)).await {
            Err(why) => return format!("leader of the controllers: {why}"),
            Ok(lease) => lease,
        };
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        // The holder is the pod's name and the start time of its process.
        let holder = holder.as_deref().unwrap_or_default();
        match holder.rsplit_once('_') {
            None => "no controller is the leader".to_owned(),
            Some((pod, _)) => {
                let log = self
                    .read_log((CONTROLLER_NAMESPACE, pod, "controller"), 0)
                    .await;
                format!("controller {pod} is the leader\n{log}")
            }
        }
    }

    /// The end of a container's log; of the previous run, if this one has logged nothing.
    async fn read_log(
        &self,
        (namespace, pod, container): (&str, &str, &str),
        restarts: i32,
    ) -> String {
        let about = format!("log of {pod}/{container}");
        for previous in [false, true] {
            if previous && restarts == 0 {
                break;
            }
            let params = LogParams {
                container: Some(container.to_owned()),
                tail_lines: Some(LOG_LINES),
                previous,
                ..LogParams::default()
            };
            let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
            match with_timeout(pods.logs(pod, &params)).await {
                Err(why) if previous || restarts == 0 => return format!("{about}: {why}"),
                Ok(text) if !text.trim().is_empty() => {
                    let which = if previous { ", before the restart" } else { "" };
                    let lines: Vec<String> = text.lines().map(format_log_line).collect();
                    return format!("{about}{which}:\n{}", indent(&lines));
                }
                _ => {}
            }
        }
        format!("{about}: empty")
    }

    async fn list<K>(&self, namespace: &str) -> Result<Vec<K>, String>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let all = with_timeout(api.list(&ListParams::default())).await?;
        Ok(all.items)
    }
}

async fn with_timeout<T, E: Display>(
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match timeout(REQUEST_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("failed to read: {error}")),
        Err(_) => {
            let seconds = REQUEST_TIMEOUT.as_secs();
            Err(format!("failed to read: no response within {seconds} s"))
        }
    }
}
