//! Discovery: whether our CRDs are served, and which version of PodDisruptionBudgets.
//!
//! Nothing starts without a result. Failed requests are retried and do not end the process, so that the controller can be
//! installed before the CRDs.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ApiResource, ListParams};
use kube::core::DeserializeGuard;
use kube::{Client, Resource};
use mainstay_crds::{EtcdCopyBackupsTask, EtcdOpsTask};
use mainstay_telemetry::ErrorChain;
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::caches::{LazyEtcd, WatchScope};

const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Waits until the CRDs can be listed.
pub(crate) async fn wait_for_crds(client: &Client, scope: &WatchScope) {
    wait_for_resource(&scope.api::<LazyEtcd>(client)).await;
    wait_for_resource(&scope.api::<DeserializeGuard<EtcdCopyBackupsTask>>(client)).await;
    wait_for_resource(&scope.api::<DeserializeGuard<EtcdOpsTask>>(client)).await;
}

async fn wait_for_resource<K>(resources: &Api<K>)
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let one = ListParams::default().limit(1);
    while let Err(error) = resources.list(&one).await {
        let resource = resources.resource_url();
        warn!(error = %ErrorChain(&error), resource, "failed to list resource, retrying");
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// The version of PodDisruptionBudgets that is served: before Kubernetes 1.21 only `v1beta1`.
pub(crate) async fn discover_pdb(client: &Client) -> ApiResource {
    let current = ApiResource::erase::<PodDisruptionBudget>(&());
    let policy = loop {
        match client.list_api_groups().await {
            Ok(list) => {
                // An API server that is starting lists the groups it has so far: one that is missing proves nothing.
                if let Some(policy) = list.groups.into_iter().find(|one| one.name == "policy") {
                    break policy;
                }
                warn!("API group policy is not served yet, retrying");
            }
            Err(error) => warn!(error = %ErrorChain(&error), "failed to list API groups, retrying"),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    };
    let has_v1 = policy
        .versions
        .iter()
        .any(|version| version.version == "v1");
    if has_v1 {
        return current;
    }
    ApiResource {
        version: "v1beta1".to_owned(),
        api_version: "policy/v1beta1".to_owned(),
        ..current
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use ::http::{Request, Response};
    use axum::body::Body as Answer;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server that fails the first request for groups, then serves one version of PodDisruptionBudgets.
    fn fake_api_server(version: &'static str) -> (Client, Arc<AtomicU32>) {
        let requested = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&requested);
        let service = tower::service_fn(move |_: Request<Body>| {
            let served = json!({ "groupVersion": format!("policy/{version}"), "version": version });
            let policy = json!({ "name": "policy", "versions": [served] });
            let (status, groups) = match counted.fetch_add(1, Ordering::Relaxed) {
                0 => (500, json!([])),
                1 => (200, json!([])),
                _ => (200, json!([policy])),
            };
            let list = json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups });
            let answer = Response::builder().status(status);
            let answer = answer.body(Answer::from(list.to_string())).unwrap();
            async { Ok::<_, Infallible>(answer) }
        });
        (Client::new(service, "default"), requested)
    }

    #[tokio::test(start_paused = true)]
    async fn starting_api_server_does_not_decide_the_pdb_version() {
        for version in ["v1", "v1beta1"] {
            let (client, requested) = fake_api_server(version);
            let budgets = discover_pdb(&client).await;
            assert_eq!(budgets.api_version, format!("policy/{version}"));
            assert_eq!(requested.load(Ordering::Relaxed), 3);
        }
    }
}
