//! A document in a ConfigMap, with optimistic concurrency by resourceVersion.

use std::collections::BTreeMap;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::timeout;

use super::{Backing, BackingError, DEADLINE, Document, Edits};

/// A document in a ConfigMap. Requires the RBAC verbs get, create and patch on it.
#[derive(Clone)]
pub struct ConfigMapBacking {
    api: Api<ConfigMap>,
    namespace: String,
    metadata: ObjectMeta,
}

impl ConfigMapBacking {
    /// The ConfigMap may not exist yet; the first write creates it.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
        }
    }

    /// Sets the labels and owner references used when the ConfigMap is created.
    #[must_use]
    pub fn with_metadata(mut self, metadata: ObjectMeta) -> Self {
        self.metadata = ObjectMeta {
            name: self.metadata.name,
            ..metadata
        };
        self
    }

    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    async fn create(&self, edits: &Edits) -> Result<(), kube::Error> {
        let data: BTreeMap<String, String> = edits
            .iter()
            .filter_map(|(name, text)| Some((name.clone(), text.clone()?)))
            .collect();
        let map = ConfigMap {
            metadata: self.metadata.clone(),
            data: Some(data),
            ..ConfigMap::default()
        };
        self.api
            .create(&PostParams::default(), &map)
            .await
            .map(drop)
    }

    /// Patches only the named entries: a merge patch keeps labels, owner references and other entries.
    async fn patch(&self, version: &str, edits: &Edits) -> Result<(), kube::Error> {
        let patch = json!({ "metadata": { "resourceVersion": version }, "data": edits });
        let params = PatchParams::default();
        self.api
            .patch(self.name(), &params, &Patch::Merge(&patch))
            .await
            .map(drop)
    }
}

#[async_trait]
impl Backing for ConfigMapBacking {
    async fn read(&self) -> Result<Document, BackingError> {
        let response = timeout(DEADLINE, self.api.get_opt(self.name())).await;
        let response = response.map_err(|_| BackingError::Timeout {
            place: self.location(),
        })?;
        let found = response.map_err(|source| BackingError::Read {
            place: self.location(),
            source: Box::new(source),
        })?;
        Ok(found.map_or_else(Document::default, |map| Document {
            entries: map.data.unwrap_or_default(),
            version: map.metadata.resource_version,
        }))
    }

    async fn write(&self, page: &Document, edits: &Edits) -> Result<(), BackingError> {
        let response = timeout(DEADLINE, async {
            match &page.version {
                // The API server answers 409 if the resourceVersion differs.
                Some(version) => self.patch(version, edits).await,
                // Create fails with 409 if another process created it first.
                None => self.create(edits).await,
            }
        });
        match response.await {
            Err(_) => Err(BackingError::Timeout {
                place: self.location(),
            }),
            Ok(Ok(())) => Ok(()),
            // 404 after a successful read: the ConfigMap was deleted in between, so the read is stale.
            Ok(Err(kube::Error::Api(status)))
                if status.code == 409 || (status.code == 404 && page.version.is_some()) =>
            {
                Err(BackingError::Conflict {
                    place: self.location(),
                })
            }
            Ok(Err(source)) => Err(BackingError::Write {
                place: self.location(),
                source: Box::new(source),
            }),
        }
    }

    fn location(&self) -> String {
        format!("ConfigMap {}/{}", self.namespace, self.name())
    }
}
