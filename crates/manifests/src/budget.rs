//! The `PodDisruptionBudget`: voluntary evictions never break the quorum.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::context::RenderContext;
use crate::labels::{self, Component};
use crate::meta;

/// Annotation of an Etcd: pods that are not ready may be evicted regardless of the budget.
pub const ALLOW_UNHEALTHY_POD_EVICTION: &str =
    "resources.druid.gardener.cloud/allow-unhealthy-pod-eviction";

pub(crate) fn render_pod_disruption_budget(draft: &RenderContext<'_>) -> PodDisruptionBudget {
    // During scale-in, members count toward the quorum until they are removed.
    let current = i32::try_from(draft.input.replicas).unwrap_or(i32::MAX);
    let replicas = draft.etcd.spec.replicas.max(current);
    // A single member may be evicted; otherwise a node drain would block forever.
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
            // A member that is not ready may still vote: without the annotation it can be evicted only while enough others are.
            unhealthy_pod_eviction_policy: Some(
                if is_lenient {
                    "AlwaysAllow"
                } else {
                    "IfHealthyBudget"
                }
                .into(),
            ),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
