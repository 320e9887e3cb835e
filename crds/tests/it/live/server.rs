//! A real API server that has learnt the definitions as they are shipped.

use std::fs;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use kube::{Client, Error};
use mainstay_crds::{GROUP, VERSION};
use mainstay_testkit::ApiServer;
use serde_json::Value;

use super::strip_metadata;
use crate::apiserver::AdmissionResult;
use crate::trials::ResourceChange;

/// Nothing is stored, but everything else happens.
const DRY_RUN: PostParams = PostParams {
    dry_run: true,
    field_manager: None,
};
const PERSIST: PostParams = PostParams {
    dry_run: false,
    field_manager: None,
};

pub(super) struct RealApiServer {
    /// It kept the rules of the definitions.
    pub(super) supports_rules: bool,
    client: Client,
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

    /// What it says to a change; afterwards it is as it was.
    pub(super) async fn submit(&self, change: &ResourceChange) -> AdmissionResult {
        match change {
            ResourceChange::Create(new) => self.create(new).await,
            ResourceChange::Update(old, new) => self.update(old, new).await,
        }
    }

    /// A status is not taken with a new resource: it is given to one that is there.
    async fn create(&self, new: &Value) -> AdmissionResult {
        let (api, new) = (self.api(new), self.to_object(new));
        let tried = to_admission_result(api.create(&DRY_RUN, &new).await);
        if tried.is_err() || new.data["status"].is_null() {
            return tried;
        }
        let mut there = api.create(&PERSIST, &new).await.unwrap();
        there.data["status"] = new.data["status"].clone();
        let tried = api.replace_status(&object_name(&there), &DRY_RUN, &there).await;
        delete_object(&api, &there).await;
        to_admission_result(tried)
    }

    async fn update(&self, old: &Value, new: &Value) -> AdmissionResult {
        let (api, old, mut new) = (self.api(new), self.to_object(old), self.to_object(new));
        assert_eq!(
            old.data["status"], new.data["status"],
            "no update changes both"
        );
        let mut there = api.create(&PERSIST, &old).await.unwrap();
        if !old.data["status"].is_null() {
            there.data["status"] = old.data["status"].clone();
            let with_status = api.replace_status(&object_name(&there), &PERSIST, &there).await;
            there = with_status.unwrap();
        }
        new.metadata.resource_version = there.metadata.resource_version.clone();
        let tried = api.replace(&object_name(&there), &DRY_RUN, &new).await;
        delete_object(&api, &there).await;
        to_admission_result(tried)
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

/// Whether every definition still has the rules it was shipped with. Some but not all would be neither of the servers
/// that are emulated.
async fn check_rules_kept(client: &Client, shipped: &[CustomResourceDefinition]) -> bool {
    let known = Api::<CustomResourceDefinition>::all(client.clone());
    let mut kept = Vec::new();
    for shipped in shipped {
        let there = known.get(shipped.metadata.name.as_deref().unwrap()).await;
        let (there, shipped) = (count_rules(&there.unwrap()), count_rules(shipped));
        assert!(there == 0 || there == shipped, "{there} rules of {shipped}");
        kept.push(there > 0);
    }
    assert!(kept.iter().all(|one| *one == kept[0]));
    kept[0]
}

fn count_rules(definition: &CustomResourceDefinition) -> usize {
    let text = serde_json::to_string(definition).unwrap();
    text.matches("x-kubernetes-validations").count()
}

async fn delete_object(api: &Api<DynamicObject>, there: &DynamicObject) {
    let removed = api.delete(&object_name(there), &DeleteParams::default()).await;
    removed.unwrap();
}

fn object_name(object: &DynamicObject) -> String {
    object.metadata.name.clone().expect("a name")
}

/// Whatever is not about the content of a resource is no answer.
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
