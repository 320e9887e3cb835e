//! Fingerprint of the CAs of etcd. etcd loads a CA only at start, so pods must restart when the content of its Secret changes.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mainstay_crds::Etcd;
use mainstay_telemetry::ErrorChain;
use tracing::warn;

use super::DialError;
use super::dial::read_ca;
use crate::fingerprint;

/// CAs that a restarted member would load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CaFingerprint {
    /// No listener uses TLS.
    #[default]
    None,
    /// Fingerprint.
    Known(String),
    /// A Secret cannot be read at the moment; the CAs may or may not have changed.
    Unreadable,
}

/// Fingerprint of the CAs of the client and peer listeners.
pub(crate) async fn observe_ca(client: &Client, etcd: &Etcd) -> CaFingerprint {
    let server = &etcd.spec.etcd;
    if server.client_url_tls.is_none() && server.peer_url_tls.is_none() {
        return CaFingerprint::None;
    }
    match compute_fingerprint(client, etcd).await {
        Ok(fingerprint) => CaFingerprint::Known(fingerprint),
        Err(error) => {
            warn!(error = %ErrorChain(&error), "failed to read CA Secret; keeping the current CA fingerprint");
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
            let ca = read_ca(&secrets, tls).await?;
            all.extend_from_slice(listener.as_bytes());
            all.extend_from_slice(fingerprint::compute(&ca).as_bytes());
        }
    }
    Ok(fingerprint::compute(&all))
}
