//! A real API server with the shipped CRDs installed.

use std::fs;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use kube::{Client, Error};
use mainstay_crds::{GROUP, VERSION};
use mainstay_testkit::ApiServer;
use serde_json::{Value, json};

use crate::admission::ResourceChange;
use crate::upstream;

/// The server validates and stores nothing.
const DRY_RUN: PostParams = PostParams {
    dry_run: true,
    field_manager: None,
};
const PERSIST: PostParams = PostParams {
    dry_run: false,
    field_manager: None,
};

/// One reason of a rejection.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Violation {
    /// Path of the field as the server reports it.
    pub(super) field: String,
    pub(super) message: String,
}

/// The stored resource with empty metadata, or why it was rejected.
pub(super) type AdmissionResult = Result<Value, Vec<Violation>>;

pub(super) struct RealApiServer {
    /// `1.36`.
    pub(super) version: String,
    pub(super) client: Client,
    namespace: String,
    _server: ApiServer,
}

impl RealApiServer {
    /// The server that tests share, with the shipped CRDs.
    pub(super) async fn start() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("yaml");
        let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
        let texts = files.map(|file| fs::read_to_string(file.path()).unwrap());
        let shipped: Vec<CustomResourceDefinition> = texts
            .map(|text| serde_norway::from_str(&text).unwrap())
            .collect();
        Self::with_crds(ApiServer::shared().await, shipped).await
    }

    /// A server of its own with the CRDs of etcd-druid.
    pub(super) async fn start_with_crds_of_etcd_druid() -> Self {
        let texts = upstream::read_crds();
        let crds = texts.iter().map(|text| serde_norway::from_str(text));
        let crds = crds.collect::<Result<_, _>>().unwrap();
        Self::with_crds(ApiServer::start().await, crds).await
    }

    async fn with_crds(server: ApiServer, crds: Vec<CustomResourceDefinition>) -> Self {
        assert_eq!(crds.len(), 3);
        server.create_crds(crds).await;
        let (client, namespace) = (server.client().await, server.create_namespace().await);
        let version = client.apiserver_version().await.unwrap();
        Self {
            version: format!("{}.{}", version.major, version.minor),
            client,
            namespace,
            _server: server,
        }
    }

    /// The answer to a change; the server is unchanged afterwards.
    pub(super) async fn submit(&self, change: &ResourceChange) -> AdmissionResult {
        match change {
            ResourceChange::Create(new) => self.create(new).await,
            ResourceChange::Update(old, new) => self.update(old, new).await,
        }
    }

    /// A create ignores the status, so the status is written in a second request.
    async fn create(&self, new: &Value) -> AdmissionResult {
        let (api, new) = (self.api(new), self.to_object(new));
        let result = to_admission_result(api.create(&DRY_RUN, &new).await);
        if result.is_err() || new.data["status"].is_null() {
            return result;
        }
        let mut stored = api.create(&PERSIST, &new).await.unwrap();
        stored.data["status"] = new.data["status"].clone();
        let result = api
            .replace_status(&object_name(&stored), &DRY_RUN, &stored)
            .await;
        delete_object(&api, &stored).await;
        to_admission_result(result)
    }

    async fn update(&self, old: &Value, new: &Value) -> AdmissionResult {
        let (api, old, mut new) = (self.api(new), self.to_object(old), self.to_object(new));
        assert_eq!(
            old.data["status"], new.data["status"],
            "an update changes the spec only"
        );
        let mut stored = api.create(&PERSIST, &old).await.unwrap();
        if !old.data["status"].is_null() {
            stored.data["status"] = old.data["status"].clone();
            let with_status = api
                .replace_status(&object_name(&stored), &PERSIST, &stored)
                .await;
            stored = with_status.unwrap();
        }
        new.metadata.resource_version = stored.metadata.resource_version.clone();
        let result = api.replace(&object_name(&stored), &DRY_RUN, &new).await;
        delete_object(&api, &stored).await;
        to_admission_result(result)
    }

    fn api(&self, resource: &Value) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, resource["kind"].as_str().unwrap());
        let resource = ApiResource::from_gvk(&kind);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    fn to_object(&self, resource: &Value) -> DynamicObject {
        let mut object: DynamicObject = serde_json::from_value(resource.clone()).unwrap();
        object.metadata.namespace = Some(self.namespace.clone());
        object
    }
}

async fn delete_object(api: &Api<DynamicObject>, stored: &DynamicObject) {
    let removed = api
        .delete(&object_name(stored), &DeleteParams::default())
        .await;
    removed.unwrap();
}

fn object_name(object: &DynamicObject) -> String {
    object.metadata.name.clone().expect("the object has a name")
}

/// Converts a validation error (422) to an answer; panics on every other error.
fn to_admission_result(answer: Result<DynamicObject, Error>) -> AdmissionResult {
    match answer {
        Ok(object) => {
            let mut stored = serde_json::to_value(object).unwrap();
            stored["metadata"] = json!({});
            Ok(stored)
        }
        Err(Error::Api(status)) if status.code == 422 => {
            let causes = status.details.into_iter().flat_map(|all| all.causes);
            let mut violations: Vec<_> = causes
                .map(|cause| Violation {
                    field: cause.field,
                    message: cause.message,
                })
                .collect();
            violations.sort();
            Err(violations)
        }
        Err(error) => panic!("{error:?}"),
    }
}
