//! Decisions of the controller for one reconcile, where they differ from the final state that the spec describes.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_crds::Etcd;
use mainstay_crds::tls::PeerTlsConfig;

use crate::names::Ordinal;

/// Decisions of the controller for one reconcile.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderInput {
    /// Current number of pods: fewer than `spec.replicas` while members join one at a time, none while a
    /// restore needs the volumes.
    pub replicas: u32,
    /// Members of the cluster. A bootstrapping member starts with this list; members that join later read it
    /// from the cluster. If it has a single member which lost its data, that member may be restored from the
    /// backup.
    pub initial_members: Vec<Ordinal>,
    /// Whether the cluster exists already.
    pub cluster_state: EtcdClusterState,
    /// Stage of TLS between members.
    pub peer_tls: PeerTlsPhase,
    /// What is rendered besides `ConfigMap` and `StatefulSet`.
    pub runtime_components: RuntimeComponents,
    /// Image of etcd while an upgrade is held back. `None`: the image of the spec.
    pub etcd_image: Option<String>,
    /// Size in the volume claim template while the `StatefulSet` keeps an older one, because the template is
    /// immutable. `None`: the size of the spec.
    pub pvc_size: Option<Quantity>,
    /// Node directory that the secret of a `Local` store names; the controller reads the secret.
    pub local_store_root: Option<String>,
    /// Additional annotations of the pods. A change makes the pods outdated.
    pub pod_annotations: BTreeMap<String, String>,
}

/// Whether the cluster exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdClusterState {
    /// No cluster exists: members without data may bootstrap one.
    New,
    /// A cluster exists or existed: a member without data never bootstraps another.
    Existing,
}

impl EtcdClusterState {
    /// Value of `initial-cluster-state`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Existing => "existing",
        }
    }
}

/// Stage of TLS between members.
///
/// A running cluster goes through [`PeerTlsPhase::Prepared`] in both directions, so that every member can always
/// dial every other. The variants contain the certificates, because a spec that switches TLS off no longer
/// names them; [`crate::tls::find_peer_tls`] finds them in the objects of the running cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerTlsPhase {
    /// Members use plain HTTP and have no certificates.
    Off,
    /// Members have certificates and can dial peers with TLS, but still listen on plain HTTP.
    Prepared(PeerTlsConfig),
    /// Members listen with TLS.
    On(PeerTlsConfig),
}

impl PeerTlsPhase {
    /// Certificates that the members have.
    pub fn certificates(&self) -> Option<&PeerTlsConfig> {
        match self {
            Self::Off => None,
            Self::Prepared(tls) | Self::On(tls) => Some(tls),
        }
    }

    /// Scheme of the peer URLs.
    pub fn scheme(&self) -> UrlScheme {
        match self {
            Self::Off | Self::Prepared(_) => UrlScheme::Http,
            Self::On(_) => UrlScheme::Https,
        }
    }
}

/// Scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlScheme {
    /// `http`, without TLS.
    Http,
    /// `https`, with TLS.
    Https,
}

impl UrlScheme {
    /// The scheme as it appears in a URL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// `https` if there are certificates.
    pub fn from_tls<T>(certificates: Option<&T>) -> Self {
        match certificates {
            Some(_) => Self::Https,
            None => Self::Http,
        }
    }
}

impl fmt::Display for UrlScheme {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// What is rendered besides `ConfigMap` and `StatefulSet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeComponents {
    /// Everything.
    Enabled,
    /// Nothing, and the `StatefulSet` has no pods: another system runs the members from its template.
    Disabled,
}

impl RenderInput {
    /// The shape without any pending change: the spec, for a new cluster.
    pub fn from_etcd(etcd: &Etcd) -> Self {
        let replicas = u32::try_from(etcd.spec.replicas).unwrap_or_default();
        Self {
            replicas,
            initial_members: (0..replicas).collect(),
            cluster_state: EtcdClusterState::New,
            peer_tls: match &etcd.spec.etcd.peer_url_tls {
                Some(tls) => PeerTlsPhase::On(tls.clone()),
                None => PeerTlsPhase::Off,
            },
            runtime_components: RuntimeComponents::Enabled,
            etcd_image: None,
            pvc_size: None,
            local_store_root: None,
            pod_annotations: BTreeMap::new(),
        }
    }
}
