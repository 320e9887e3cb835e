//! Transfers field ownership of objects that etcd-druid created.
//!
//! The API server records which manager owns which field. Server-side apply removes only fields that the applying manager
//! owned before, so fields of etcd-druid would stay forever. The transfer makes its entries ours; the next apply then removes
//! the fields it does not set.

use crate::model::annotations::FIELD_MANAGER;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Map, Value};

/// Field managers of etcd-druid: the name of its binary. `manager` is not one of them, many other controllers use it.
const DRUID_FIELD_MANAGERS: [&str; 1] = ["etcd-druid"];

/// The managed fields after the transfer; `None` when etcd-druid owns none.
pub(super) fn take_over_fields(record: &[ManagedFieldsEntry]) -> Option<Vec<ManagedFieldsEntry>> {
    let is_druids = |entry: &&ManagedFieldsEntry| {
        let manager = entry.manager.as_deref().unwrap_or_default();
        // Entries of the status subresource stay: apply does not write the status.
        DRUID_FIELD_MANAGERS.contains(&manager)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let is_ours = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(FIELD_MANAGER)
            && entry.operation.as_deref() == Some("Apply")
    };
    let first = record.iter().find(is_druids)?;
    let fields = record
        .iter()
        .filter(|entry| is_druids(entry) || is_ours(entry))
        .filter_map(|entry| entry.fields_v1.as_ref())
        .fold(Value::Object(Map::new()), |sum, FieldsV1(fields)| {
            merge_fields(sum, fields)
        });
    let others = record
        .iter()
        .filter(|entry| !is_druids(entry) && !is_ours(entry));
    let ours = ManagedFieldsEntry {
        manager: Some(FIELD_MANAGER.to_owned()),
        operation: Some("Apply".to_owned()),
        fields_v1: Some(FieldsV1(fields)),
        ..first.clone()
    };
    Some(others.cloned().chain([ours]).collect())
}

/// The union of two field sets.
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
    fn fields_of_etcd_druid_are_taken_over_and_those_of_others_stay() {
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
    fn fields_already_owned_are_left_unchanged() {
        let mut status = entry("etcd-druid", "Update", json!({}));
        status.subresource = Some("status".to_owned());
        assert_eq!(
            take_over_fields(&[entry(FIELD_MANAGER, "Apply", json!({})), status]),
            None
        );
    }
}
