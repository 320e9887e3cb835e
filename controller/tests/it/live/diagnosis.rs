//! What a namespace holds, for the message of a wait that failed.

use std::fmt::Write as _;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, Resource, ResourceExt};
use mainstay_crds::{Etcd, EtcdCopyBackupsTask, EtcdOpsTask};
use serde_json::Value;

/// One line per object: kind, name, and the fields that change. Failures to list are lines, too.
pub(super) async fn namespace(client: &Client, namespace: &str) -> String {
    let mut lines = String::new();
    for resource in [
        kind::<Etcd>(),
        kind::<EtcdOpsTask>(),
        kind::<EtcdCopyBackupsTask>(),
        kind::<StatefulSet>(),
        kind::<Pod>(),
        kind::<PersistentVolumeClaim>(),
        kind::<Job>(),
        kind::<Lease>(),
        kind::<Event>(),
    ] {
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
        match api.list(&ListParams::default()).await {
            Ok(list) => list.iter().for_each(|object| {
                let (name, fields) = (object.name_any(), changing(object, &resource.kind));
                writeln!(lines, "{} {name}: {fields}", resource.kind).expect("a String");
            }),
            Err(error) => writeln!(lines, "{}: {error}", resource.kind).expect("a String"),
        }
    }
    lines
}

fn kind<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

fn changing(object: &DynamicObject, kind: &str) -> Value {
    let meta = &object.metadata;
    let fields = match kind {
        "Event" => serde_json::json!([object.data["reason"], object.data["message"]]),
        "Lease" => object.data["spec"].clone(),
        _ => object.data["status"].clone(),
    };
    serde_json::json!([
        meta.resource_version,
        meta.creation_timestamp,
        meta.deletion_timestamp,
        fields
    ])
}
