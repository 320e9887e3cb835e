//! Leases, created without a spec: members and the leading sidecar fill them, and an apply must not reset that.

use k8s_openapi::api::coordination::v1::Lease;

use crate::context::RenderContext;
use crate::labels::Component;
use crate::meta;

/// One Lease per existing or desired member.
pub(crate) fn render_member_leases(draft: &RenderContext<'_>) -> Vec<Lease> {
    let desired = u32::try_from(draft.etcd.spec.replicas).unwrap_or_default();
    (0..desired.max(draft.input.replicas))
        .map(|ordinal| render_lease(draft, &draft.names.member(ordinal), Component::MemberLease))
        .collect()
}

/// Leases of the newest full and delta snapshot, if there is a store.
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
        // An absent spec leaves the fields of the other field managers alone.
        spec: None,
    }
}
