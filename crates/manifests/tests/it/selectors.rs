//! Member selectors match member pods, and never the pods of Jobs or of other Etcds.

use std::collections::BTreeMap;

use mainstay_crds::Etcd;
use mainstay_manifests::labels::{format_member_selector, stateful_set_selector};
use mainstay_manifests::{Manifests, Names, RenderInput};
use proptest::prelude::*;

use crate::support::{
    job_template, plain_etcd, pod_template, render_all_copies, render_etcd, render_jobs,
};

type Labels = BTreeMap<String, String>;

/// All selectors among the objects, with the name of their object.
fn collect_selectors(manifests: &Manifests) -> Vec<(&'static str, Labels)> {
    let service = |service: &Option<k8s_openapi::api::core::v1::Service>| {
        let spec = service.as_ref().unwrap().spec.as_ref().unwrap();
        spec.selector.clone().unwrap()
    };
    let budget = manifests.pod_disruption_budget.as_ref().unwrap();
    let budget = budget.spec.as_ref().unwrap().selector.clone().unwrap();
    let set = manifests.stateful_set.spec.as_ref().unwrap();
    vec![
        ("client service", service(&manifests.client_service)),
        ("peer service", service(&manifests.peer_service)),
        ("disruption budget", budget.match_labels.unwrap()),
        ("stateful set", set.selector.match_labels.clone().unwrap()),
    ]
}

fn matches_selector(selector: &Labels, labels: &Labels) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

fn pod_labels(manifests: &Manifests) -> Labels {
    let metadata = pod_template(manifests).metadata.as_ref().unwrap();
    metadata.labels.clone().unwrap()
}

fn job_pod_labels(etcd: &Etcd) -> Vec<Labels> {
    let shape = RenderInput::from_etcd(etcd);
    let jobs = render_jobs(etcd, &shape)
        .into_iter()
        .chain(render_all_copies().into_iter().take(1));
    let labels = jobs.map(|job| {
        let metadata = job_template(&job).metadata.clone().unwrap();
        metadata.labels.unwrap()
    });
    labels.collect()
}

/// Labels that a user may set, including those of the controller.
fn any_labels() -> impl Strategy<Value = Labels> {
    let key = prop_oneof![
        Just("app.kubernetes.io/part-of".to_owned()),
        Just("app.kubernetes.io/component".to_owned()),
        Just("app.kubernetes.io/managed-by".to_owned()),
        "[a-z]{1,3}",
    ];
    proptest::collection::btree_map(key, "[a-z0-9]{1,3}", 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn selectors_match_members_with_any_custom_labels(
        labels in any_labels(), name in "[a-z]([-a-z0-9]{0,10}[a-z0-9])?",
    ) {
        let mut etcd = plain_etcd();
        etcd.metadata.name = Some(name);
        etcd.spec.labels.clone_from(&labels);
        let manifests = render_etcd(&etcd);
        let pods = pod_labels(&manifests);
        for (object, selector) in collect_selectors(&manifests) {
            prop_assert!(matches_selector(&selector, &pods), "{object}: {selector:?} {pods:?}");
        }
        for (key, value) in &labels {
            let is_ours = key.starts_with("app.kubernetes.io/");
            prop_assert!(is_ours || pods.get(key) == Some(value));
        }
    }

    #[test]
    fn selectors_never_match_pods_of_jobs_or_other_etcds(
        labels in any_labels(), other in "[a-z]{1,8}",
    ) {
        let mut etcd = plain_etcd();
        etcd.spec.labels = labels;
        let manifests = render_etcd(&etcd);
        let mut neighbour = etcd.clone();
        neighbour.metadata.name = Some(format!("etcd-main-{other}"));
        let mut others = job_pod_labels(&etcd);
        others.push(pod_labels(&render_etcd(&neighbour)));
        for (object, selector) in collect_selectors(&manifests) {
            for other_pod in &others {
                prop_assert!(!matches_selector(&selector, other_pod), "{object} selects {other_pod:?}");
            }
        }
    }
}

#[test]
fn stateful_set_selector_is_stable() {
    let etcd = plain_etcd();
    let selector = stateful_set_selector(&Names::new(&etcd))
        .match_labels
        .unwrap();
    let expected = [
        ("app.kubernetes.io/managed-by", "etcd-druid"),
        ("app.kubernetes.io/part-of", "etcd-main"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(selector, Labels::from(expected));
    let text = format_member_selector(&Names::new(&etcd));
    assert_eq!(text.matches('=').count(), 3, "{text}");
}

#[test]
fn every_object_is_owned_by_the_etcd_and_labelled() {
    let etcd = plain_etcd();
    for object in render_etcd(&etcd).to_objects().unwrap() {
        let metadata = &object.object.metadata;
        let owner = &metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.name.as_str()),
            ("Etcd", "etcd-main")
        );
        assert_eq!(owner.api_version, "druid.gardener.cloud/v1alpha1");
        assert_eq!(
            (owner.controller, owner.block_owner_deletion),
            (Some(true), Some(true))
        );
        let labels = metadata.labels.as_ref().unwrap();
        let named = labels["app.kubernetes.io/name"].as_str();
        assert_eq!(named, object.name().replace(':', "-"));
        assert_eq!(labels["app.kubernetes.io/part-of"], "etcd-main");
        assert_eq!(metadata.namespace.as_deref(), Some("shoot"));
    }
}

#[test]
fn objects_are_ordered_by_dependency() {
    let kinds: Vec<String> = render_etcd(&plain_etcd())
        .to_objects()
        .unwrap()
        .into_iter()
        .map(|object| object.resource.kind)
        .collect();
    let expected = [
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "Lease",
        "Lease",
        "Lease",
        "PodDisruptionBudget",
        "Service",
        "Service",
        "ConfigMap",
        "StatefulSet",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn older_api_server_gets_a_v1beta1_pod_disruption_budget() {
    let mut etcd = plain_etcd();
    let annotation = mainstay_manifests::ALLOW_UNHEALTHY_POD_EVICTION;
    etcd.metadata.annotations = Some([(annotation.into(), String::new())].into());
    let budget = render_etcd(&etcd).pod_disruption_budget.unwrap();
    let policy = budget
        .spec
        .as_ref()
        .unwrap()
        .unhealthy_pod_eviction_policy
        .as_deref();
    assert_eq!(policy, Some("AlwaysAllow"));
    let old = mainstay_manifests::ManifestObject::from_budget_v1beta1(&budget).unwrap();
    assert_eq!(old.resource.api_version, "policy/v1beta1");
    assert_eq!(old.object.types.unwrap().api_version, "policy/v1beta1");
    let spec = &old.object.data["spec"];
    assert_eq!(spec["minAvailable"], 2);
    assert!(spec.get("unhealthyPodEvictionPolicy").is_none(), "{spec}");
}
