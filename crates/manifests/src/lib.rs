//! The Kubernetes objects an `Etcd` needs, as a function of it.
//!
//! ```text
//! Etcd ─────────────┐
//! Settings ─────────┼─► render ─► Manifests ─► objects(), in the order they are applied
//!  of the operator  │      │
//! Shape ────────────┘      └─ names, labels, store, tls: one place each, used by jobs too
//!  of this moment
//!                      jobs: restore, compaction, copy, drill
//! ```
//!
//! **Comes in**: a resource as its author wrote it, what holds for the installation, and what the controller has
//! decided for this moment. **Goes out**: objects that hold nothing but what is to be set.
//!
//! **Holds**: names, labels, owners and selectors are those consumers of etcd-druid rely on. Defaults are applied
//! here and never stored. The same input gives the same bytes. A change of membership alone changes no pod. Every
//! pod but the helper of a `Local` store is admitted in a namespace with restricted pod security.
//!
//! **Does not do**: read anything, compare with what exists, decide.

#![forbid(unsafe_code)]

mod access;
mod budget;
pub mod config;
mod draft;
mod error;
pub mod jobs;
pub mod labels;
mod leases;
mod meta;
pub mod names;
mod objects;
pub mod pod;
pub mod quantity;
mod schedule;
mod services;
mod settings;
mod shape;
mod stateful_set;
pub mod store;
pub mod tls;
mod values;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use mainstay_crds::Etcd;

pub use budget::ALLOW_UNHEALTHY_POD_EVICTION;
pub use error::RenderError;
pub use names::{Names, Ordinal};
pub use objects::ManifestObject;
pub use pod::{CONFIG_CHECKSUM, ETCD_CONTAINER, EtcdVersion, INIT_CONTAINER, SIDECAR_CONTAINER};
pub use settings::{DefaultImages, LOCAL_STORE_ROOT, PullPolicy, OperatorSettings};
pub use shape::{EtcdClusterState, PeerTlsPhase, RuntimeComponents, UrlScheme, RenderInput};
pub use stateful_set::DEFAULT_PVC_SIZE;

use draft::RenderContext;

/// Everything an Etcd needs. What is `None` or absent here and exists in the cluster is to be deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifests {
    /// Who the pods are; `None` without runtime components, as all but the last two.
    pub service_account: Option<ServiceAccount>,
    /// What the pods may do.
    pub role: Option<Role>,
    /// That they may do it.
    pub role_binding: Option<RoleBinding>,
    /// One per member.
    pub member_leases: Vec<Lease>,
    /// Full and delta, where there is a store.
    pub snapshot_leases: Vec<Lease>,
    /// How many members have to stay.
    pub pod_disruption_budget: Option<PodDisruptionBudget>,
    /// For clients.
    pub client_service: Option<Service>,
    /// For members.
    pub peer_service: Option<Service>,
    /// The configuration of etcd.
    pub config_map: ConfigMap,
    /// The pods.
    pub stateful_set: StatefulSet,
}

/// Renders everything an Etcd needs.
pub fn render(etcd: &Etcd, settings: &OperatorSettings, shape: &RenderInput) -> Result<Manifests, RenderError> {
    let draft = RenderContext::new(etcd, settings, shape)?;
    let (config_map, checksum) = config::render_config_map(&draft)?;
    let stateful_set = stateful_set::render_stateful_set(&draft, checksum)?;
    if !draft.has_runtime_components() {
        return Ok(Manifests {
            service_account: None,
            role: None,
            role_binding: None,
            member_leases: Vec::new(),
            snapshot_leases: Vec::new(),
            pod_disruption_budget: None,
            client_service: None,
            peer_service: None,
            config_map,
            stateful_set,
        });
    }
    let (member_leases, snapshot_leases) = (leases::render_member_leases(&draft), leases::render_snapshot_leases(&draft));
    let leases = member_leases.iter().chain(&snapshot_leases);
    let leases = leases.filter_map(|lease| lease.metadata.name.clone());
    Ok(Manifests {
        service_account: Some(access::render_service_account(&draft)),
        role: Some(access::render_role(&draft, leases.collect())),
        role_binding: Some(access::render_role_binding(&draft)),
        member_leases,
        snapshot_leases,
        pod_disruption_budget: Some(budget::render_pod_disruption_budget(&draft)),
        client_service: Some(services::render_client_service(&draft)),
        peer_service: Some(services::render_peer_service(&draft)),
        config_map,
        stateful_set,
    })
}

impl Manifests {
    /// All objects in the order they are applied: what pods need is there before they are.
    pub fn to_objects(&self) -> Result<Vec<ManifestObject>, RenderError> {
        let Self {
            service_account,
            role,
            role_binding,
            member_leases,
            snapshot_leases,
            pod_disruption_budget,
            client_service,
            peer_service,
            config_map,
            stateful_set,
        } = self;
        let mut objects = Vec::new();
        objects.extend(service_account.iter().map(ManifestObject::from_typed));
        objects.extend(role.iter().map(ManifestObject::from_typed));
        objects.extend(role_binding.iter().map(ManifestObject::from_typed));
        objects.extend(member_leases.iter().map(ManifestObject::from_typed));
        objects.extend(snapshot_leases.iter().map(ManifestObject::from_typed));
        objects.extend(pod_disruption_budget.iter().map(ManifestObject::from_typed));
        objects.extend(client_service.iter().map(ManifestObject::from_typed));
        objects.extend(peer_service.iter().map(ManifestObject::from_typed));
        objects.push(ManifestObject::from_typed(config_map));
        objects.push(ManifestObject::from_typed(stateful_set));
        objects.into_iter().collect()
    }
}
