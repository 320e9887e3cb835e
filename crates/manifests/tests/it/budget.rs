//! How many members a drain leaves alone.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use mainstay_manifests::{RenderInput, render};

use crate::support::{plain_etcd, settings};

/// How many pods have to stay, where so many are wanted and so many are there.
fn min_available(wanted: i32, there: u32) -> IntOrString {
    let mut etcd = plain_etcd();
    etcd.spec.replicas = wanted;
    let shape = RenderInput {
        replicas: there,
        ..RenderInput::from_etcd(&etcd)
    };
    let manifests = render(&etcd, &settings(), &shape).unwrap();
    let budget = manifests.pod_disruption_budget.unwrap();
    budget.spec.unwrap().min_available.unwrap()
}

#[test]
fn members_that_are_to_go_are_counted_until_they_are_gone() {
    for (wanted, there, stay) in [
        (3, 3, 2),
        (3, 5, 3),
        (1, 3, 2),
        (0, 3, 2),
        (5, 3, 3),
        (1, 1, 0),
        (0, 0, 0),
    ] {
        assert_eq!(
            min_available(wanted, there),
            IntOrString::Int(stay),
            "{there} of {wanted}"
        );
    }
}
