//! Removes etcd-druid's finalizer from Secrets when the last Etcd that references them is deleted.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ListParams};
use mainstay_crds::Etcd;
use mainstay_telemetry::ErrorChain;
use tracing::warn;

use super::ActError;
use crate::context::Context;
use crate::model::annotations::FINALIZER;
use crate::writer::{Finalizer, Target, api_resource};

/// Removes the finalizer from the Secrets that only this Etcd references. Failures are logged and do not block deletion.
pub(crate) async fn remove_secret_finalizers(ctx: &Context, etcd: &Etcd) {
    let mut own = list_referenced_secrets(etcd);
    if own.is_empty() || ctx.writer.check_leadership().is_err() {
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
        if let Err(error) = remove_finalizer(ctx, &secrets, &name).await {
            warn!(secret = name, error = %ErrorChain(&error), "failed to remove finalizer from secret");
        }
    }
}

async fn remove_finalizer(
    ctx: &Context,
    secrets: &Api<Secret>,
    name: &str,
) -> Result<(), ActError> {
    let found = secrets.get_metadata_opt(name).await;
    let found = found.map_err(|source| ActError::Read {
        kind: "Secret".to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    })?;
    let Some(secret) = found else {
        return Ok(());
    };
    let target = Target::with_resource(api_resource::<Secret>(), &secret.metadata);
    let absent = (FINALIZER, Finalizer::Absent);
    let removed = ctx.writer.set_finalizer(&target, &secret.metadata, absent);
    Ok(removed.await?)
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
