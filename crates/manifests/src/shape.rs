//! What the controller has decided for this moment, where it differs from what the spec asks for in the end.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_crds::Etcd;
use mainstay_crds::tls::PeerTlsConfig;

use crate::names::Ordinal;

/// What the controller has decided for this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderInput {
    /// How many pods there are to be now: fewer than `spec.replicas` while members join one at a time, none
    /// while a restore needs the volumes.
    pub replicas: u32,
    /// The members the cluster has; one that begins now begins with these. Members that join later read the list
    /// from the cluster. A member that is alone here and has lost its data may be restored from the backup.
    pub initial_members: Vec<Ordinal>,
    /// Whether there is a cluster already.
    pub cluster_state: EtcdClusterState,
    /// How far encryption between members is.
    pub peer_tls: PeerTlsPhase,
    /// What is made besides configuration and `StatefulSet`.
    pub runtime_components: RuntimeComponents,
    /// The image of etcd while a newer one has to wait. `None`: what the spec says.
    pub etcd_image: Option<String>,
    /// The size in the claim template while the `StatefulSet` keeps an older one, since a template cannot be
    /// changed in place. `None`: what the spec says.
    pub pvc_size: Option<Quantity>,
    /// Directory of the node that the secret of a `Local` store names, which is the controller's to read.
    pub local_store_root: Option<String>,
    /// More annotations of the pods. One that changes makes the pods outdated.
    pub pod_annotations: BTreeMap<String, String>,
}

/// Whether there is a cluster already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdClusterState {
    /// None yet: members without data may begin one together.
    New,
    /// There is, or was, one: a member without data never begins another.
    Existing,
}

impl EtcdClusterState {
    /// As etcd spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Existing => "existing",
        }
    }
}

/// How far encryption between members is.
///
/// A running cluster goes through [`PeerTls::Prepared`] in both directions, so that at every moment every
/// member can dial every other. The certificates are part of it, since a spec that switches encryption off
/// names none any more; [`crate::tls::find_peer_tls`] finds them in the objects of the running cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerTlsPhase {
    /// Members talk plain HTTP and have no certificates.
    Off,
    /// Members have certificates and can dial others that are encrypted; they themselves still listen plain.
    Prepared(PeerTlsConfig),
    /// Members listen encrypted.
    On(PeerTlsConfig),
}

impl PeerTlsPhase {
    /// The certificates members have.
    pub fn certificates(&self) -> Option<&PeerTlsConfig> {
        match self {
            Self::Off => None,
            Self::Prepared(tls) | Self::On(tls) => Some(tls),
        }
    }

    /// What the peer URLs of members begin with.
    pub fn scheme(&self) -> UrlScheme {
        match self {
            Self::Off | Self::Prepared(_) => UrlScheme::Http,
            Self::On(_) => UrlScheme::Https,
        }
    }
}

/// What a URL begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlScheme {
    /// Plain.
    Http,
    /// Encrypted.
    Https,
}

impl UrlScheme {
    /// As a URL spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Encrypted where there are certificates.
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

/// What is made besides configuration and `StatefulSet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeComponents {
    /// Everything.
    Enabled,
    /// Nothing, and no pods: somebody else runs the members from the template.
    Disabled,
}

impl RenderInput {
    /// The shape in which nothing has to wait: what the spec asks for, in a cluster that is to begin.
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
