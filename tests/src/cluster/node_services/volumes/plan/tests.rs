use serde_json::{Value, json};

use super::*;

fn pvc(differs: Value) -> Arc<PersistentVolumeClaim> {
    let mut claim = json!({
        "metadata": {"name": "data-0", "namespace": "shoot", "uid": "1234"},
        "spec": {
            "storageClassName": MEMORY_CLASS,
            "resources": {"requests": {"storage": "64Mi"}},
        },
    });
    merge(&mut claim, differs);
    Arc::new(serde_json::from_value(claim).unwrap())
}

/// A PVC that is bound to its volume.
fn bound_pvc(differs: Value) -> Arc<PersistentVolumeClaim> {
    let mut bound = json!({
        "spec": {"volumeName": "pvc-1234"},
        "status": {"phase": "Bound", "capacity": {"storage": "64Mi"}},
    });
    merge(&mut bound, differs);
    pvc(bound)
}

fn volume(differs: Value) -> Arc<PersistentVolume> {
    let mut volume = json!({
        "metadata": {"name": "pvc-1234", "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "storageClassName": MEMORY_CLASS,
            "capacity": {"storage": "64Mi"},
            "claimRef": {"namespace": "shoot", "name": "data-0", "uid": "1234"},
        },
        "status": {"phase": "Bound"},
    });
    merge(&mut volume, differs);
    Arc::new(serde_json::from_value(volume).unwrap())
}

/// The steps if no volume directory exists.
fn plan(
    claims: &[Arc<PersistentVolumeClaim>],
    volumes: &[Arc<PersistentVolume>],
) -> Vec<VolumeStep> {
    plan_steps(claims, volumes, &BTreeSet::new())
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
fn new_pvc_gets_a_volume_of_the_requested_size() {
    let steps = plan(&[pvc(json!({}))], &[]);
    assert!(
        matches!(&steps[..], [VolumeStep::CreateVolume { medium: Medium::Memory, size, .. }] if size.0 == "64Mi"),
        "{steps:?}"
    );
}

#[test]
fn pvc_with_an_existing_volume_gets_no_second_one() {
    let steps = plan(&[pvc(json!({}))], &[volume(json!({}))]);
    assert!(steps.is_empty(), "{steps:?}");
}

#[test]
fn pvcs_of_other_storage_classes_are_ignored() {
    let other = pvc(json!({"spec": {"storageClassName": "gp3"}}));
    assert!(plan(&[other], &[]).is_empty());
}

#[test]
fn terminating_pvc_gets_no_volume() {
    let leaving = pvc(json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}));
    assert!(plan(&[leaving], &[]).is_empty());
}

#[test]
fn bound_pvc_needs_no_step() {
    let steps = plan(&[bound_pvc(json!({}))], &[volume(json!({}))]);
    assert!(steps.is_empty(), "{steps:?}");
}

#[test]
fn pvc_that_lost_its_volume_gets_no_empty_replacement() {
    assert!(plan(&[bound_pvc(json!({}))], &[]).is_empty());
}

#[test]
fn expanded_pvc_reports_capacity_after_its_volume_is_expanded() {
    let grown = || bound_pvc(json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}));
    let first = plan(&[grown()], &[volume(json!({}))]);
    assert!(
        matches!(&first[..], [VolumeStep::ExpandVolume { volume, .. }] if volume == "pvc-1234"),
        "{first:?}"
    );
    let enlarged = volume(json!({"spec": {"capacity": {"storage": "1Gi"}}}));
    let second = plan(&[grown()], &[enlarged]);
    assert!(
        matches!(&second[..], [VolumeStep::ReportCapacity { size, .. }] if size.0 == "1Gi"),
        "{second:?}"
    );
}

fn released_volume() -> Arc<PersistentVolume> {
    volume(json!({"status": {"phase": "Released"}}))
}

#[test]
fn released_volume_is_deleted_when_no_pvc_has_its_uid() {
    let found = plan(&[], &[released_volume()]);
    assert!(
        matches!(&found[..], [VolumeStep::DeleteVolume { volume }] if volume == "pvc-1234"),
        "{found:?}"
    );
    let replaced = pvc(json!({"metadata": {"uid": "5678"}, "spec": {"volumeName": "pvc-5678"}}));
    let found = plan(&[replaced], &[released_volume()]);
    assert!(
        matches!(&found[..], [VolumeStep::DeleteVolume { volume }] if volume == "pvc-1234"),
        "the PVC of the same name has another uid: {found:?}"
    );
}

#[test]
fn released_volume_is_kept_while_its_pvc_exists() {
    for claim in [pvc(json!({})), bound_pvc(json!({}))] {
        let found = plan(&[claim], &[released_volume()]);
        assert!(found.is_empty(), "{found:?}");
    }
    let terminating = bound_pvc(json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}));
    let found = plan(&[terminating], &[released_volume()]);
    assert!(found.is_empty(), "a pod may still mount it: {found:?}");
}

#[test]
fn volume_of_another_provisioner_or_unknown_pvc_is_ignored() {
    let foreign = volume(json!({
        "metadata": {"annotations": {PROVISIONED_BY: "another-provisioner"}}, "status": {"phase": "Released"},
    }));
    let unknown = volume(json!({
        "spec": {"claimRef": {"uid": null}}, "status": {"phase": "Released"},
    }));
    assert!(plan(&[], &[foreign, unknown]).is_empty());
}

#[test]
fn directory_is_deleted_only_after_the_volume_and_its_pvc() {
    let directories = BTreeSet::from(["pvc-1234".to_owned(), "lost+found".to_owned()]);
    let deleting = json!({
        "metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}, "status": {"phase": "Released"},
    });
    let found = plan_steps(&[], &[volume(deleting)], &directories);
    assert!(
        found.is_empty(),
        "the PersistentVolume still exists: {found:?}"
    );
    let found = plan_steps(&[], &[], &directories);
    assert!(
        matches!(&found[..], [VolumeStep::DeleteBytes { volume }] if volume == "pvc-1234"),
        "{found:?}"
    );
}

#[test]
fn directory_is_not_deleted_before_its_pvc_is_bound() {
    let directories = BTreeSet::from(["pvc-1234".to_owned()]);
    let found = plan_steps(&[pvc(json!({}))], &[], &directories);
    assert!(
        matches!(&found[..], [VolumeStep::CreateVolume { .. }]),
        "{found:?}"
    );
}
