//! What the API server serves: the resources of ours, and which version of disruption budgets.
//!
//! Nothing begins without an answer. One that fails is no reason to end: it is asked for again.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ApiResource, ListParams};
use kube::core::DeserializeGuard;
use kube::{Client, Resource};
use mainstay_crds::{EtcdCopyBackupsTask, EtcdOpsTask};
use mainstay_telemetry::Chain;
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::caches::{Guarded, Scope};

/// The pause between two questions.
const RETRY: Duration = Duration::from_secs(2);

/// Waits until the API server knows the resources.
pub(crate) async fn are_known(client: &Client, scope: &Scope) {
    is_known(&scope.api::<Guarded>(client)).await;
    is_known(&scope.api::<DeserializeGuard<EtcdCopyBackupsTask>>(client)).await;
    is_known(&scope.api::<DeserializeGuard<EtcdOpsTask>>(client)).await;
}

async fn is_known<K>(resources: &Api<K>)
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let one = ListParams::default().limit(1);
    while let Err(error) = resources.list(&one).await {
        let resource = resources.resource_url();
        warn!(error = %Chain(&error), resource, "a resource cannot be listed yet");
        tokio::time::sleep(RETRY).await;
    }
}

/// The version of disruption budgets the API server serves: older ones have only `v1beta1`.
pub(crate) async fn budgets(client: &Client) -> ApiResource {
    let current = ApiResource::erase::<PodDisruptionBudget>(&());
    let groups = loop {
        match client.list_api_groups().await {
            Ok(groups) => break groups,
            Err(error) => {
                warn!(error = %Chain(&error), "the API groups cannot be listed yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    let policy = groups.groups.iter().find(|group| group.name == "policy");
    let has_v1 = policy.is_none_or(|policy| {
        policy
            .versions
            .iter()
            .any(|version| version.version == "v1")
    });
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

    /// An API server that fails to tell its groups once, then tells of one version of budgets.
    fn server(version: &'static str) -> (Client, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let service = tower::service_fn(move |_: Request<Body>| {
            let is_first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            let told = json!({ "groupVersion": format!("policy/{version}"), "version": version });
            let groups = json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [{ "name": "policy", "versions": [told] }] });
            let answer = Response::builder().status(if is_first { 500 } else { 200 });
            let answer = answer.body(Answer::from(groups.to_string())).unwrap();
            async { Ok::<_, Infallible>(answer) }
        });
        (Client::new(service, "default"), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn groups_that_cannot_be_listed_are_asked_for_again() {
        for version in ["v1", "v1beta1"] {
            let (client, asked) = server(version);
            let budgets = budgets(&client).await;
            assert_eq!(budgets.api_version, format!("policy/{version}"));
            assert_eq!(asked.load(Ordering::Relaxed), 2);
        }
    }
}
