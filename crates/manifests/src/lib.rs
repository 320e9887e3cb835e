//! Renders the Kubernetes objects of an `Etcd`.
//!
//! ```text
//! Etcd ─────────────┐
//! Settings ─────────┼─► render ─► Manifests ─► objects(), in apply order
//!  of the operator  │      │
//! Shape ────────────┘      └─ names, labels, store, tls: one module each, used by jobs too
//!  of this reconcile
//!                      jobs: restore, compaction, copy, drill
//! ```
//!
//! The input is the Etcd as its author wrote it, the settings of the installation, and the decisions of the controller
//! for this reconcile. The output is objects that contain only the fields to set.
//!
//! **Invariants**: names, labels, owners and selectors are those that consumers of etcd-druid rely on. Defaults are
//! applied here and never stored. Rendering is deterministic: the same input gives the same bytes. A change of membership
//! alone changes no pod. Every pod is admitted under the restricted Pod Security Standard, except the helper container of
//! a `Local` store.
//!
//! The crate reads nothing, compares nothing with existing objects and decides nothing.

#![forbid(unsafe_code)]

mod budget;
pub mod config;
mod context;
mod error;
pub mod jobs;
pub mod labels;
mod leases;
mod meta;
pub mod names;
mod objects;
pub mod pod;
pub mod quantity;
mod rbac;
mod render_input;
mod schedule;
mod services;
mod settings;
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
pub use pod::{CONFIG_CHECKSUM, ETCD_CONTAINER, INIT_CONTAINER, SIDECAR_CONTAINER};
pub use render_input::{EtcdClusterState, PeerTlsPhase, RenderInput, RuntimeComponents, UrlScheme};
pub use settings::{DefaultImages, LOCAL_STORE_ROOT, OperatorSettings, PullPolicy};
pub use stateful_set::DEFAULT_PVC_SIZE;

use context::RenderContext;

/// All objects of an Etcd. An object that is `None` or absent here but exists in the cluster must be deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifests {
    /// `ServiceAccount` of the pods. Without runtime components, all fields but the last two are `None` or empty.
    pub service_account: Option<ServiceAccount>,
    /// Permissions of the pods.
    pub role: Option<Role>,
    /// Binds the role to the `ServiceAccount`.
    pub role_binding: Option<RoleBinding>,
    /// One Lease per member.
    pub member_leases: Vec<Lease>,
    /// Leases of the full and the delta snapshots; empty without a store.
    pub snapshot_leases: Vec<Lease>,
    /// Protects the quorum against voluntary disruptions.
    pub pod_disruption_budget: Option<PodDisruptionBudget>,
    /// Service for clients.
    pub client_service: Option<Service>,
    /// Headless Service for traffic between members.
    pub peer_service: Option<Service>,
    /// Configuration of etcd.
    pub config_map: ConfigMap,
    /// `StatefulSet` of the members.
    pub stateful_set: StatefulSet,
}

/// Renders all objects of an Etcd.
pub fn render(
    etcd: &Etcd,
    settings: &OperatorSettings,
    shape: &RenderInput,
) -> Result<Manifests, RenderError> {
    let draft = RenderContext::new(etcd, settings, shape)?;
    let (config_map, checksum) = config::render_config_map(&draft)?;
    let stateful_set = stateful_set::render_stateful_set(&draft, checksum)?;
    // Another system runs the members from the ConfigMap and the pod template.
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
    let (member_leases, snapshot_leases) = (
        leases::render_member_leases(&draft),
        leases::render_snapshot_leases(&draft),
    );
    let leases = member_leases.iter().chain(&snapshot_leases);
    let leases = leases.filter_map(|lease| lease.metadata.name.clone());
    Ok(Manifests {
        service_account: Some(rbac::render_service_account(&draft)),
        role: Some(rbac::render_role(&draft, leases.collect())),
        role_binding: Some(rbac::render_role_binding(&draft)),
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
    /// All objects in apply order: what the pods need comes before the `StatefulSet`.
    pub fn to_objects(&self) -> Result<Vec<ManifestObject>, RenderError> {
        // No `..`: a new field must be added to the list below.
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
