//! Authorities that etcd reads once, when it starts. Those that change under the same name would never be noticed by it.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mainstay_crds::Etcd;
use mainstay_telemetry::ErrorChain;
use tracing::warn;

use super::DialError;
use super::dial::read_ca;
use crate::fingerprint;

/// What members would start with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CaFingerprint {
    /// Nobody talks TLS.
    #[default]
    None,
    /// These, as a fingerprint.
    Known(String),
    /// A secret cannot be read now. That says nothing about what it holds.
    Unreadable,
}

/// The authorities of etcd's own listeners.
pub async fn observe_ca(client: &Client, etcd: &Etcd) -> CaFingerprint {
    let server = &etcd.spec.etcd;
    if server.client_url_tls.is_none() && server.peer_url_tls.is_none() {
        return CaFingerprint::None;
    }
    match compute_fingerprint(client, etcd).await {
        Ok(fingerprint) => CaFingerprint::Known(fingerprint),
        Err(error) => {
            warn!(error = %ErrorChain(&error), "a secret with authorities cannot be read: members keep what they have");
            CaFingerprint::Unreadable
        }
    }
}

async fn compute_fingerprint(client: &Client, etcd: &Etcd) -> Result<String, DialError> {
    let namespace = etcd.metadata.namespace.as_deref().unwrap_or_default();
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let server = &etcd.spec.etcd;
    let peers = server.peer_url_tls.as_ref().map(|peer| &peer.tls);
    let mut all = Vec::new();
    for (listener, tls) in [("client", server.client_url_tls.as_ref()), ("peer", peers)] {
        if let Some(tls) = tls {
            let authority = read_ca(&secrets, tls).await?;
            all.extend_from_slice(listener.as_bytes());
            all.extend_from_slice(fingerprint::compute(&authority).as_bytes());
        }
    }
    Ok(fingerprint::compute(&all))
}
