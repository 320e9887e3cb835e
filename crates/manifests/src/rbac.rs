//! `ServiceAccount` and permissions of the pods: their own Leases and the coordination `ConfigMap`, by name.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};

use crate::context::RenderContext;
use crate::labels::Component;
use crate::meta;

pub(crate) fn render_service_account(draft: &RenderContext<'_>) -> ServiceAccount {
    let name = draft.names.service_account();
    ServiceAccount {
        metadata: meta::build_metadata(draft.etcd, &name, Component::ServiceAccount),
        automount_service_account_token: Some(draft.settings.automount_service_account_token),
        ..ServiceAccount::default()
    }
}

/// The rules name single objects, so a pod cannot access objects of another Etcd in the namespace.
pub(crate) fn render_role(draft: &RenderContext<'_>, leases: Vec<String>) -> Role {
    let rule = |group: &str, resource: &str, names: Vec<String>, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(vec![resource.into()]),
        resource_names: Some(names),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    };
    let coordination = vec![draft.names.coordination_config_map()];
    Role {
        metadata: meta::build_metadata(draft.etcd, &draft.names.role(), Component::Role),
        rules: Some(vec![
            rule(
                "coordination.k8s.io",
                "leases",
                leases,
                &["get", "patch", "update"],
            ),
            rule("", "configmaps", coordination, &["get", "patch"]),
        ]),
    }
}

pub(crate) fn render_role_binding(draft: &RenderContext<'_>) -> RoleBinding {
    let name = draft.names.role();
    RoleBinding {
        metadata: meta::build_metadata(draft.etcd, &name, Component::RoleBinding),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "Role".into(),
            name,
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: draft.names.service_account(),
            namespace: Some(draft.names.namespace.into()),
            ..Subject::default()
        }]),
    }
}
