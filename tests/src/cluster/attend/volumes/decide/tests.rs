use serde_json::{Value, json};

use super::*;

fn claim(differs: Value) -> Arc<PersistentVolumeClaim> {
    let mut claim = json!({
        "metadata": {"name": "data-0", "namespace": "shoot", "uid": "1234"},
        "spec": {
            "storageClassName": MEMORY,
            "resources": {"requests": {"storage": "64Mi"}},
        },
    });
    merge(&mut claim, differs);
    Arc::new(serde_json::from_value(claim).unwrap())
}

/// A claim that has its volume.
fn bound(differs: Value) -> Arc<PersistentVolumeClaim> {
    let mut bound = json!({
        "spec": {"volumeName": "pvc-1234"},
        "status": {"phase": "Bound", "capacity": {"storage": "64Mi"}},
    });
    merge(&mut bound, differs);
    claim(bound)
}

fn volume(differs: Value) -> Arc<PersistentVolume> {
    let mut volume = json!({
        "metadata": {"name": "pvc-1234", "annotations": {MADE_BY: PROVISIONER}},
        "spec": {"storageClassName": MEMORY, "capacity": {"storage": "64Mi"}},
        "status": {"phase": "Bound"},
    });
    merge(&mut volume, differs);
    Arc::new(serde_json::from_value(volume).unwrap())
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[test]
fn a_new_claim_gets_a_volume_of_the_size_it_asks_for() {
    let steps = steps(&[claim(json!({}))], &[]);
    assert!(
        matches!(&steps[..], [Step::Make { medium: Medium::Memory, size, .. }] if size.0 == "64Mi"),
        "{steps:?}"
    );
}

#[test]
fn a_claim_whose_volume_exists_gets_no_second_one() {
    let steps = steps(&[claim(json!({}))], &[volume(json!({}))]);
    assert!(steps.is_empty(), "{steps:?}");
}

#[test]
fn claims_of_other_classes_are_left_to_others() {
    let other = claim(json!({"spec": {"storageClassName": "gp3"}}));
    assert!(steps(&[other], &[]).is_empty());
}

#[test]
fn a_claim_that_is_being_deleted_gets_nothing() {
    let leaving = claim(json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}));
    assert!(steps(&[leaving], &[]).is_empty());
}

#[test]
fn a_bound_claim_is_at_rest() {
    let steps = steps(&[bound(json!({}))], &[volume(json!({}))]);
    assert!(steps.is_empty(), "{steps:?}");
}

#[test]
fn a_claim_that_lost_its_volume_does_not_get_an_empty_one_by_itself() {
    assert!(steps(&[bound(json!({}))], &[]).is_empty());
}

#[test]
fn a_grown_claim_first_enlarges_its_volume_then_is_told() {
    let grown = || bound(json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}));
    let first = steps(&[grown()], &[volume(json!({}))]);
    assert!(
        matches!(&first[..], [Step::Enlarge { volume, .. }] if volume == "pvc-1234"),
        "{first:?}"
    );
    let enlarged = volume(json!({"spec": {"capacity": {"storage": "1Gi"}}}));
    let second = steps(&[grown()], &[enlarged]);
    assert!(
        matches!(&second[..], [Step::Tell { size, .. }] if size.0 == "1Gi"),
        "{second:?}"
    );
}

#[test]
fn a_volume_whose_claim_is_gone_goes_unless_it_is_somebody_elses() {
    let left = volume(json!({"status": {"phase": "Released"}}));
    let found = steps(&[], &[left]);
    assert!(matches!(&found[..], [Step::Remove { .. }]), "{found:?}");
    let foreign = volume(json!({
        "metadata": {"annotations": {MADE_BY: "somebody"}}, "status": {"phase": "Released"},
    }));
    assert!(steps(&[], &[foreign]).is_empty());
}
