//! Leases, created empty: members and the leading sidecar fill them, and nothing here ever takes that back.

use k8s_openapi::api::coordination::v1::Lease;

use crate::draft::RenderContext;
use crate::labels::Component;
use crate::meta;

/// One for every member there is or is to be.
pub(crate) fn render_member_leases(draft: &RenderContext<'_>) -> Vec<Lease> {
    let wanted = u32::try_from(draft.etcd.spec.replicas).unwrap_or_default();
    (0..wanted.max(draft.input.replicas))
        .map(|ordinal| render_lease(draft, &draft.names.member(ordinal), Component::MemberLease))
        .collect()
}

/// Those of the newest snapshots, where there is a store.
pub(crate) fn render_snapshot_leases(draft: &RenderContext<'_>) -> Vec<Lease> {
    if draft.etcd.spec.backup.store.is_none() {
        return Vec::new();
    }
    [
        draft.names.full_snapshot_lease(),
        draft.names.delta_snapshot_lease(),
    ]
    .iter()
    .map(|name| render_lease(draft, name, Component::SnapshotLease))
    .collect()
}

fn render_lease(draft: &RenderContext<'_>, name: &str, component: Component) -> Lease {
    Lease {
        metadata: meta::build_metadata(draft.etcd, name, component),
        spec: None,
    }
}
