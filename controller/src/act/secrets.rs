//! Removes etcd-druid's finalizer from Secrets when the last Etcd that references them is deleted.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use mainstay_crds::Etcd;
use mainstay_telemetry::ErrorChain;
use serde_json::json;
use tracing::warn;

use crate::context::Context;
use crate::model::annotations::FINALIZER;

/// Removes the finalizer from the Secrets that only this Etcd references. Failures are logged and do not block deletion.
pub(crate) async fn remove_secret_finalizers(ctx: &Context, etcd: &Etcd) {
    let mut own = list_referenced_secrets(etcd);
    if own.is_empty() || ctx.leadership.check().is_err() {
        return;
    }
    let namespace = etcd.metadata.namespace.as_deref().unwrap_or_default();
    match list_other_references(&ctx.client, namespace, etcd).await {
        Ok(others) => own.retain(|name| !others.contains(name)),
        Err(error) => {
            warn!(error = %ErrorChain(&error), "failed to list other Etcds; keeping the finalizers of referenced secrets");
            return;
        }
    }
    let secrets = Api::<Secret>::namespaced(ctx.client.clone(), namespace);
    for name in own {
        match remove_finalizer(&secrets, &name).await {
            Ok(true) => ctx.metrics.record_write("Secret"),
            Ok(false) => {}
            Err(error) => {
                warn!(secret = name, error = %ErrorChain(&error), "failed to remove finalizer from secret");
            }
        }
    }
}

async fn remove_finalizer(secrets: &Api<Secret>, name: &str) -> Result<bool, kube::Error> {
    let Some(secret) = secrets.get_metadata_opt(name).await? else {
        return Ok(false);
    };
    let remaining: Vec<&String> = secret
        .finalizers()
        .iter()
        .filter(|finalizer| *finalizer != FINALIZER)
        .collect();
    if remaining.len() == secret.finalizers().len() {
        return Ok(false);
    }
    // A merge patch replaces the whole list; the resourceVersion protects finalizers that others add meanwhile.
    let patch = json!({ "metadata": { "resourceVersion": secret.metadata.resource_version, "finalizers": remaining } });
    secrets
        .patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(true)
}

async fn list_other_references(
    client: &Client,
    namespace: &str,
    except: &Etcd,
) -> Result<BTreeSet<String>, kube::Error> {
    let etcds = Api::<Etcd>::namespaced(client.clone(), namespace)
        .list(&ListParams::default())
        .await?;
    let others = etcds
        .iter()
        .filter(|etcd| etcd.metadata.uid != except.metadata.uid);
    Ok(others.flat_map(list_referenced_secrets).collect())
}

/// Names of all Secrets that an Etcd references.
fn list_referenced_secrets(etcd: &Etcd) -> BTreeSet<String> {
    let (server, backup) = (&etcd.spec.etcd, &etcd.spec.backup);
    let listeners = [
        server.client_url_tls.as_ref(),
        server.peer_url_tls.as_ref().map(|peer| &peer.tls),
        backup.tls.as_ref(),
    ];
    let certificates = listeners.into_iter().flatten().flat_map(|tls| {
        let client = tls
            .client
            .as_ref()
            .and_then(|client| client.non_empty_name());
        [tls.ca.non_empty_name(), tls.server.non_empty_name(), client]
    });
    let store = backup
        .store
        .as_ref()
        .and_then(|store| store.secret_ref.as_ref()?.non_empty_name());
    certificates
        .chain([store])
        .flatten()
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use mainstay_crds::EtcdSpec;
    use mainstay_crds::store::StoreSpec;
    use mainstay_crds::tls::{CaSecretReference, SecretReference, TlsConfig};

    use super::*;

    #[test]
    fn each_secret_of_a_spec_is_listed_once() {
        let secret = |name: &str| SecretReference {
            name: Some(name.to_owned()),
            namespace: None,
        };
        let tls = |server: &str| TlsConfig {
            ca: CaSecretReference {
                name: Some("ca".to_owned()),
                ..CaSecretReference::default()
            },
            server: secret(server),
            client: Some(secret("client")),
        };
        let mut etcd = Etcd::new("main", EtcdSpec::default());
        etcd.spec.etcd.client_url_tls = Some(tls("server"));
        etcd.spec.backup.tls = Some(tls("backup"));
        etcd.spec.backup.store = Some(StoreSpec {
            secret_ref: Some(secret("store")),
            ..StoreSpec::default()
        });
        let expected = ["backup", "ca", "client", "server", "store"].map(str::to_owned);
        assert_eq!(list_referenced_secrets(&etcd), BTreeSet::from(expected));
    }
}
