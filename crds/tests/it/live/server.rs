//! A real API server that has learnt the definitions as they are shipped.

use std::fs;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use kube::{Client, Error};
use mainstay_crds::{GROUP, VERSION};
use mainstay_testkit::ApiServer;
use serde_json::Value;

use super::without_metadata;
use crate::apiserver::Answer;
use crate::trials::Change;

/// Nothing is stored, but everything else happens.
const TRIED: PostParams = PostParams {
    dry_run: true,
    field_manager: None,
};
const DONE: PostParams = PostParams {
    dry_run: false,
    field_manager: None,
};

pub(super) struct Server {
    /// It kept the rules of the definitions.
    pub(super) knows_rules: bool,
    client: Client,
    namespace: String,
    _alive: ApiServer,
}

impl Server {
    pub(super) async fn start() -> Self {
        let server = ApiServer::start().await;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("yaml");
        let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
        let texts = files.map(|file| fs::read_to_string(file.path()).unwrap());
        let shipped: Vec<CustomResourceDefinition> = texts
            .map(|text| serde_norway::from_str(&text).unwrap())
            .collect();
        assert_eq!(shipped.len(), 3);
        server.define(shipped.clone()).await;
        let (client, namespace) = (server.client().await, server.namespace().await);
        Self {
            knows_rules: keeps_rules(&client, &shipped).await,
            client,
            namespace,
            _alive: server,
        }
    }

    /// What it says to a change; afterwards it is as it was.
    pub(super) async fn answer(&self, change: &Change) -> Answer {
        match change {
            Change::Create(new) => self.create(new).await,
            Change::Update(old, new) => self.update(old, new).await,
        }
    }

    /// A status is not taken with a new resource: it is given to one that is there.
    async fn create(&self, new: &Value) -> Answer {
        let (api, new) = (self.api(new), self.object(new));
        let tried = answered(api.create(&TRIED, &new).await);
        if tried.is_err() || new.data["status"].is_null() {
            return tried;
        }
        let mut there = api.create(&DONE, &new).await.unwrap();
        there.data["status"] = new.data["status"].clone();
        let tried = api.replace_status(&name(&there), &TRIED, &there).await;
        remove(&api, &there).await;
        answered(tried)
    }

    async fn update(&self, old: &Value, new: &Value) -> Answer {
        let (api, old, mut new) = (self.api(new), self.object(old), self.object(new));
        assert_eq!(
            old.data["status"], new.data["status"],
            "no update changes both"
        );
        let mut there = api.create(&DONE, &old).await.unwrap();
        if !old.data["status"].is_null() {
            there.data["status"] = old.data["status"].clone();
            let with_status = api.replace_status(&name(&there), &DONE, &there).await;
            there = with_status.unwrap();
        }
        new.metadata.resource_version = there.metadata.resource_version.clone();
        let tried = api.replace(&name(&there), &TRIED, &new).await;
        remove(&api, &there).await;
        answered(tried)
    }

    fn api(&self, resource: &Value) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, resource["kind"].as_str().unwrap());
        let resource = ApiResource::from_gvk(&kind);
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    fn object(&self, resource: &Value) -> DynamicObject {
        let mut object: DynamicObject = serde_json::from_value(resource.clone()).unwrap();
        object.metadata.namespace = Some(self.namespace.clone());
        object
    }
}

/// Whether every definition still has the rules it was shipped with. Some but not all would be neither of the servers
/// that are emulated.
async fn keeps_rules(client: &Client, shipped: &[CustomResourceDefinition]) -> bool {
    let known = Api::<CustomResourceDefinition>::all(client.clone());
    let mut kept = Vec::new();
    for shipped in shipped {
        let there = known.get(shipped.metadata.name.as_deref().unwrap()).await;
        let (there, shipped) = (rules(&there.unwrap()), rules(shipped));
        assert!(there == 0 || there == shipped, "{there} rules of {shipped}");
        kept.push(there > 0);
    }
    assert!(kept.iter().all(|one| *one == kept[0]));
    kept[0]
}

fn rules(definition: &CustomResourceDefinition) -> usize {
    let text = serde_json::to_string(definition).unwrap();
    text.matches("x-kubernetes-validations").count()
}

async fn remove(api: &Api<DynamicObject>, there: &DynamicObject) {
    let removed = api.delete(&name(there), &DeleteParams::default()).await;
    removed.unwrap();
}

fn name(object: &DynamicObject) -> String {
    object.metadata.name.clone().expect("a name")
}

/// Whatever is not about the content of a resource is no answer.
fn answered(answer: Result<DynamicObject, Error>) -> Answer {
    match answer {
        Ok(object) => Ok(without_metadata(serde_json::to_value(object).unwrap())),
        Err(Error::Api(status)) if status.code == 422 => {
            let causes = status.details.into_iter().flat_map(|all| all.causes);
            Err(causes
                .map(|cause| format!("{}: {}", cause.field, cause.message))
                .collect())
        }
        Err(error) => panic!("{error:?}"),
    }
}
