//! A real API server accepts every file of `crds/samples`, as `kubectl apply --server-side --dry-run=server` sends it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ObjectMeta, Patch, PatchParams, PostParams,
};
use serde::Deserialize as _;
use serde_json::Value;

use super::server::RealApiServer;

/// Namespace of the samples that name one.
const NAMESPACE: &str = "shop";

/// The documents of every file, with the names of the files.
fn load_published() -> Vec<(String, Vec<Value>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples");
    let files = fs::read_dir(folder).unwrap().map(Result::unwrap);
    files
        .map(|file| {
            let text = fs::read_to_string(file.path()).unwrap();
            let name = file.file_name().into_string().unwrap();
            assert!(text.starts_with("# "), "{name}: no comment says what it is");
            let documents = serde_norway::Deserializer::from_str(&text)
                .map(|document| Value::deserialize(document).unwrap());
            (name, documents.collect())
        })
        .collect()
}

/// Names of Secrets that the samples refer to by `secretRef`.
fn collect_secret_refs(value: &Value, found: &mut BTreeSet<String>) {
    if let Some(name) = value["secretRef"]["name"].as_str() {
        found.insert(name.to_owned());
    }
    match value {
        Value::Object(fields) => {
            for field in fields.values() {
                collect_secret_refs(field, found);
            }
        }
        Value::Array(items) => {
            for item in items {
                collect_secret_refs(item, found);
            }
        }
        _ => {}
    }
}

async fn dry_run(server: &RealApiServer, sample: &Value) -> Result<DynamicObject, kube::Error> {
    let mut object: DynamicObject = serde_json::from_value(sample.clone()).unwrap();
    let types = object.types.clone().unwrap();
    let kind = GroupVersionKind::try_from(&types).unwrap();
    let namespace = object.metadata.namespace.get_or_insert(NAMESPACE.into());
    let api: Api<DynamicObject> = Api::namespaced_with(
        server.client.clone(),
        namespace,
        &ApiResource::from_gvk(&kind),
    );
    let Some(name) = object.metadata.name.clone() else {
        // A task that is created anew each time has a generated name, which cannot be applied.
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        return api.create(&parameters, &object).await;
    };
    let mut parameters = PatchParams::apply("samples").dry_run();
    // A misspelt field is an error and is not dropped.
    parameters.field_validation = Some(kube::api::ValidationDirective::Strict);
    api.patch(&name, &parameters, &Patch::Apply(&object)).await
}

#[tokio::test]
async fn api_server_accepts_every_published_sample() {
    let server = RealApiServer::start().await;
    let namespaces = Api::<Namespace>::all(server.client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let created = namespaces.create(&PostParams::default(), &namespace).await;
    // Another test of a shared server may have created it.
    assert!(
        created.is_ok()
            || matches!(&created, Err(kube::Error::Api(status)) if status.is_already_exists()),
        "{created:?}"
    );

    let published = load_published();
    let files: BTreeSet<&str> = published.iter().map(|(name, _)| name.as_str()).collect();
    for needed in ["etcd-single.yaml", "etcd-ha-tls.yaml", "restore.yaml"] {
        assert!(files.contains(needed), "{needed} is missing");
    }
    for (name, documents) in &published {
        let mut kinds = BTreeSet::new();
        for sample in documents {
            let answer = dry_run(&server, sample).await;
            let stored = answer.unwrap_or_else(|error| panic!("{name}: {error}"));
            kinds.insert(stored.types.unwrap().kind);
        }
        assert!(
            kinds.iter().any(|kind| kind.starts_with("Etcd")),
            "{name}: {kinds:?}"
        );
    }
}

#[test]
fn every_secret_of_a_published_sample_is_in_its_file() {
    for (name, documents) in load_published() {
        let mut needed = BTreeSet::new();
        let mut contained = BTreeSet::new();
        for sample in &documents {
            collect_secret_refs(sample, &mut needed);
            if sample["kind"] == "Secret" {
                contained.insert(sample["metadata"]["name"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(needed, contained, "{name}");
    }
}
