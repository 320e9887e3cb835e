//! How many members a node drain must leave running.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use mainstay_manifests::{RenderInput, render};

use crate::support::{plain_etcd, settings};

/// `minAvailable` for this desired and current number of members.
fn min_available(desired: i32, current: u32) -> IntOrString {
    let mut etcd = plain_etcd();
    etcd.spec.replicas = desired;
    let shape = RenderInput {
        replicas: current,
        ..RenderInput::from_etcd(&etcd)
    };
    let manifests = render(&etcd, &settings(), &shape).unwrap();
    let budget = manifests.pod_disruption_budget.unwrap();
    budget.spec.unwrap().min_available.unwrap()
}

#[test]
fn min_available_counts_members_until_they_are_removed() {
    for (desired, current, expected) in [
        (3, 3, 2),
        (3, 5, 3),
        (1, 3, 2),
        (0, 3, 2),
        (5, 3, 3),
        (1, 1, 0),
        (0, 0, 0),
    ] {
        assert_eq!(
            min_available(desired, current),
            IntOrString::Int(expected),
            "{current} of {desired}"
        );
    }
}
