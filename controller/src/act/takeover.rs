//! Objects of etcd-druid become ours.
//!
//! The API server remembers who set which field. What etcd-druid set and we do not would stay for ever, since
//! nobody who applies owns it. So its record is made ours; the apply that follows then removes what it does not mention.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Map, Value};

use super::marks::FIELD_MANAGER;

/// Names under which etcd-druid writes: that of its program, which was never another. Many other controllers write as
/// `manager`; what they set is theirs.
const DRUID_FIELD_MANAGERS: [&str; 1] = ["etcd-druid"];

/// The record after the takeover; `None` when nothing of a predecessor is in it.
pub(super) fn take_over_fields(record: &[ManagedFieldsEntry]) -> Option<Vec<ManagedFieldsEntry>> {
    let is_theirs = |entry: &&ManagedFieldsEntry| {
        let manager = entry.manager.as_deref().unwrap_or_default();
        DRUID_FIELD_MANAGERS.contains(&manager)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let is_ours = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(FIELD_MANAGER)
            && entry.operation.as_deref() == Some("Apply")
    };
    let first = record.iter().find(is_theirs)?;
    let fields = record
        .iter()
        .filter(|entry| is_theirs(entry) || is_ours(entry))
        .filter_map(|entry| entry.fields_v1.as_ref())
        .fold(Value::Object(Map::new()), |sum, FieldsV1(fields)| {
            merge_fields(sum, fields)
        });
    let others = record
        .iter()
        .filter(|entry| !is_theirs(entry) && !is_ours(entry));
    let ours = ManagedFieldsEntry {
        manager: Some(FIELD_MANAGER.to_owned()),
        operation: Some("Apply".to_owned()),
        fields_v1: Some(FieldsV1(fields)),
        ..first.clone()
    };
    Some(others.cloned().chain([ours]).collect())
}

/// All fields of both.
fn merge_fields(sum: Value, more: &Value) -> Value {
    match (sum, more) {
        (Value::Object(mut sum), Value::Object(more)) => {
            for (key, value) in more {
                let merged = match sum.remove(key) {
                    Some(before) => merge_fields(before, value),
                    None => value.clone(),
                };
                sum.insert(key.clone(), merged);
            }
            Value::Object(sum)
        }
        (sum, _) => sum,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: Some(manager.to_owned()),
            operation: Some(operation.to_owned()),
            fields_v1: Some(FieldsV1(fields)),
            ..ManagedFieldsEntry::default()
        }
    }

    #[test]
    fn fields_of_the_predecessor_become_ours_and_those_of_others_stay() {
        let record = [
            entry(
                "etcd-druid",
                "Update",
                json!({"f:spec": {"f:replicas": {}}}),
            ),
            entry("manager", "Update", json!({"f:metadata": {"f:labels": {}}})),
            entry(
                FIELD_MANAGER,
                "Apply",
                json!({"f:spec": {"f:template": {}}}),
            ),
        ];
        let after = take_over_fields(&record).unwrap();
        let managers: Vec<_> = after
            .iter()
            .map(|entry| entry.manager.as_deref().unwrap())
            .collect();
        assert_eq!(managers, ["manager", FIELD_MANAGER]);
        let ours = after[1].fields_v1.as_ref().unwrap();
        assert_eq!(
            ours.0,
            json!({"f:spec": {"f:replicas": {}, "f:template": {}}})
        );
    }

    #[test]
    fn what_was_always_ours_is_left_alone() {
        let mut status = entry("etcd-druid", "Update", json!({}));
        status.subresource = Some("status".to_owned());
        assert_eq!(
            take_over_fields(&[entry(FIELD_MANAGER, "Apply", json!({})), status]),
            None
        );
    }
}
