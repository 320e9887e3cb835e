//! The disruption budget: nobody who asks first takes the quorum away.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::draft::RenderContext;
use crate::labels::{self, Component};
use crate::meta;

/// Annotation of an Etcd: pods that are not ready may be evicted whatever the budget says.
pub const ALLOW_UNHEALTHY_POD_EVICTION: &str =
    "resources.druid.gardener.cloud/allow-unhealthy-pod-eviction";

pub(crate) fn render_pod_disruption_budget(draft: &RenderContext<'_>) -> PodDisruptionBudget {
    // Members that are to go are needed until they are gone.
    let there = i32::try_from(draft.input.replicas).unwrap_or(i32::MAX);
    let replicas = draft.etcd.spec.replicas.max(there);
    // One member alone may be evicted: a drain must not wait for ever.
    let needed = if replicas <= 1 { 0 } else { replicas / 2 + 1 };
    let annotations = draft.etcd.metadata.annotations.as_ref();
    let is_lenient = annotations.is_some_and(|all| all.contains_key(ALLOW_UNHEALTHY_POD_EVICTION));
    let name = draft.names.pod_disruption_budget();
    PodDisruptionBudget {
        metadata: meta::build_metadata(draft.etcd, &name, Component::PodDisruptionBudget),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(needed)),
            selector: Some(LabelSelector {
                match_labels: Some(labels::member_selector(&draft.names)),
                ..LabelSelector::default()
            }),
            unhealthy_pod_eviction_policy: is_lenient.then(|| "AlwaysAllow".into()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
