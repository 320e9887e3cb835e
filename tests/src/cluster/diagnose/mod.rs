//! What a person looks at first when a cluster does not become what it should be, in words.
//!
//! ```text
//! namespace ─ list ─► Etcds, pods, Events, logs ─┐
//! controllers ─ list ─► pods, logs of the leader ─┴─► words (pure) ─► one text
//! ```
//!
//! **Holds**: it only reads, every read has a deadline, and what cannot be read is said to be so. It never fails.

mod words;

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

use super::install::{ELECTION_LEASE, CONTROLLER_NAMESPACE};
use words::{UnreadyContainer, format_etcd, format_events, indent, format_log_line, unready_containers, format_pods};

/// For one answer of the API server, which may be what is missing.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of each log is shown.
const LOG_LINES: i64 = 15;

/// The state of the Etcds of a namespace and of the controllers.
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

    /// Which controller acts, and what it logged.
    async fn describe_leader(&self) -> String {
        let leases = Api::<Lease>::namespaced(self.client.clone(), CONTROLLER_NAMESPACE);
        let lease = match with_timeout(leases.get(ELECTION_LEASE)).await {
            Err(why) => return format!("the controller that leads: {why}"),
            Ok(lease) => lease,
        };
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        // The pod, and when its process started.
        let holder = holder.as_deref().unwrap_or_default();
        match holder.rsplit_once('_') {
            None => "no controller leads".to_owned(),
            Some((pod, _)) => {
                let log = self.read_log((CONTROLLER_NAMESPACE, pod, "controller"), 0).await;
                format!("controller {pod} holds the Lease of the leader\n{log}")
            }
        }
    }

    /// The end of a container's log; of the container before it, if this one has logged nothing.
    async fn read_log(&self, (namespace, pod, container): (&str, &str, &str), restarts: i32) -> String {
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
                    let which = if previous { ", before its restart" } else { "" };
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

async fn with_timeout<T, E: Display>(answer: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match timeout(REQUEST_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("cannot be read: {error}")),
        Err(_) => {
            let seconds = REQUEST_TIMEOUT.as_secs();
            Err(format!("cannot be read: no answer within {seconds} s"))
        }
    }
}
