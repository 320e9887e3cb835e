//! Authorities that etcd reads once, when it starts. Those that change under the same name would never be noticed by it.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use steward_crds::Etcd;
use steward_telemetry::Chain;
use tracing::debug;

use super::DialError;
use super::dial::authority;

/// How long a fingerprint is: whoever could make a collision may write the secret anyway.
const FINGERPRINT_BYTES: usize = 12;

/// What members would start with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Authorities {
    /// Nobody talks TLS.
    #[default]
    None,
    /// These, as a fingerprint.
    Fingerprint(String),
    /// A secret cannot be read now. That says nothing about what it holds.
    Unreadable,
}

/// The authorities of etcd's own listeners.
pub async fn authorities(client: &Client, etcd: &Etcd) -> Authorities {
    let server = &etcd.spec.etcd;
    if server.client_url_tls.is_none() && server.peer_url_tls.is_none() {
        return Authorities::None;
    }
    match fingerprint(client, etcd).await {
        Ok(fingerprint) => Authorities::Fingerprint(fingerprint),
        Err(error) => {
            debug!(error = %Chain(&error), "the authorities cannot be read");
            Authorities::Unreadable
        }
    }
}

async fn fingerprint(client: &Client, etcd: &Etcd) -> Result<String, DialError> {
    let namespace = etcd.metadata.namespace.as_deref().unwrap_or_default();
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let server = &etcd.spec.etcd;
    let peers = server.peer_url_tls.as_ref().map(|peer| &peer.tls);
    let mut sum = Sha256::new();
    for (listener, tls) in [("client", server.client_url_tls.as_ref()), ("peer", peers)] {
        if let Some(tls) = tls {
            let authority = authority(&secrets, tls).await?;
            sum.update(listener);
            sum.update(Sha256::digest(authority));
        }
    }
    let digest = sum.finalize();
    let short = digest.iter().take(FINGERPRINT_BYTES);
    Ok(short.map(|byte| format!("{byte:02x}")).collect())
}
