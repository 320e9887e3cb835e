//! A real API server with the shipped CRDs installed.

use std::fs;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use kube::{Client, Error};
use mainstay_crds::{GROUP, VERSION};
use mainstay_testkit::ApiServer;
use serde_json::Value;

use super::strip_metadata;
use crate::admission::ResourceChange;
use crate::api_emulator::AdmissionResult;

/// The server validates and stores nothing.
const DRY_RUN: PostParams = PostParams {
    dry_run: true,
    field_manager: None,
};
const PERSIST: PostParams = PostParams {
    dry_run: false,
    field_manager: None,
};

pub(super) struct RealApiServer {
    /// The server kept the CEL rules of the CRDs.
    pub(super) supports_rules: bool,
    pub(super) client: Client,
    namespace: String,
    _server: ApiServer,
}

impl RealApiServer {
    pub(super) async fn start() -> Self {
        let server = ApiServer::start().await;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("yaml");
        let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
        let texts = files.map(|file| fs::read_to_string(file.path()).unwrap());
        let shipped: Vec<CustomResourceDefinition> = texts
            .map(|text| serde_norway::from_str(&text).unwrap())
            .collect();
        assert_eq!(shipped.len(), 3);
        server.create_crds(shipped.clone()).await;
        let (client, namespace) = (server.client().await, server.create_namespace().await);
        Self {
            supports_rules: check_rules_kept(&client, &shipped).await,
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

/// Whether the installed CRDs have all rules or none. A mixture would match no emulated server.
async fn check_rules_kept(client: &Client, shipped: &[CustomResourceDefinition]) -> bool {
    let known = Api::<CustomResourceDefinition>::all(client.clone());
    let mut kept = Vec::new();
    for shipped in shipped {
        let installed = known.get(shipped.metadata.name.as_deref().unwrap()).await;
        let (installed, shipped) = (count_rules(&installed.unwrap()), count_rules(shipped));
        assert!(
            installed == 0 || installed == shipped,
            "{installed} of {shipped} rules installed"
        );
        kept.push(installed > 0);
    }
    assert!(kept.iter().all(|one| *one == kept[0]));
    kept[0]
}

fn count_rules(definition: &CustomResourceDefinition) -> usize {
    let text = serde_json::to_string(definition).unwrap();
    text.matches("x-kubernetes-validations").count()
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
        Ok(object) => Ok(strip_metadata(serde_json::to_value(object).unwrap())),
        Err(Error::Api(status)) if status.code == 422 => {
            let causes = status.details.into_iter().flat_map(|all| all.causes);
            Err(causes
                .map(|cause| format!("{}: {}", cause.field, cause.message))
                .collect())
        }
        Err(error) => panic!("{error:?}"),
    }
}
