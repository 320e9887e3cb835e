//! Host directory of a `Local` store, which its Secret may set.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mainstay_crds::Etcd;

use super::DialError;

/// The host directory; `None` for other providers, or when the Secret sets none. An unreadable Secret is an error, because the
/// default directory would be the wrong one and split the backup.
pub(crate) async fn read_local_store_root(
    client: &Client,
    etcd: &Etcd,
) -> Result<Option<String>, DialError> {
    let (Some(name), Some(namespace)) =
        (local_secret_name(etcd), etcd.metadata.namespace.as_deref())
    else {
        return Ok(None);
    };
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let secret = secrets
        .get(name)
        .await
        .map_err(|source| DialError::Secret {
            name: name.to_owned(),
            source: Box::new(source),
        })?;
    let path = secret.data.and_then(|mut data| data.remove("hostPath"));
    let path = path.and_then(|path| String::from_utf8(path.0).ok());
    Ok(path.filter(|path| !path.is_empty()))
}

fn local_secret_name(etcd: &Etcd) -> Option<&str> {
    let store = etcd.spec.backup.store.as_ref()?;
    let provider = store.provider.as_deref()?;
    let reference = store.secret_ref.as_ref()?;
    provider
        .eq_ignore_ascii_case("local")
        .then(|| reference.non_empty_name())
        .flatten()
}
