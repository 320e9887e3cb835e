//! Permissions that the chart grants to the controller: everything that it needs and nothing else.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::chart::{filter_kind, helm_binaries, render_chart};
use crate::support::{plain_etcd, render_etcd, render_jobs, store_spec};
use mainstay_manifests::RenderInput;

/// Required verbs per resource, with the reason.
const REQUIRED_PERMISSIONS: [(&str, &str, &[&str]); 23] = [
    // Reconciled; finalizer and reconcile annotation are patched.
    (DRUID_GROUP, "etcds", &["get", "list", "watch", "patch"]),
    // The same, and deleted when their TTL has expired.
    (
        DRUID_GROUP,
        "etcdcopybackupstasks",
        &["get", "list", "watch", "patch", "delete"],
    ),
    (
        DRUID_GROUP,
        "etcdopstasks",
        &["get", "list", "watch", "patch", "delete"],
    ),
    (DRUID_GROUP, "etcds/status", &["get", "patch"]),
    (
        DRUID_GROUP,
        "etcdcopybackupstasks/status",
        &["get", "patch"],
    ),
    (DRUID_GROUP, "etcdopstasks/status", &["get", "patch"]),
    // Required for owner references with `blockOwnerDeletion`.
    (DRUID_GROUP, "etcds/finalizers", &["update"]),
    (DRUID_GROUP, "etcdcopybackupstasks/finalizers", &["update"]),
    (DRUID_GROUP, "etcdopstasks/finalizers", &["update"]),
    // Rendered and applied.
    ("", "serviceaccounts", ALL_VERBS),
    ("", "services", ALL_VERBS),
    ("", "configmaps", ALL_VERBS),
    ("apps", "statefulsets", ALL_VERBS),
    ("policy", "poddisruptionbudgets", ALL_VERBS),
    ("batch", "jobs", ALL_VERBS),
    ("rbac.authorization.k8s.io", "roles", ALL_VERBS),
    ("rbac.authorization.k8s.io", "rolebindings", ALL_VERBS),
    // The same; `update`, because the controller can grant only verbs that it has, and members update their Leases.
    (
        "coordination.k8s.io",
        "leases",
        &[
            "get", "list", "watch", "create", "patch", "update", "delete",
        ],
    ),
    // Deleted one at a time during a rollout.
    ("", "pods", &["get", "list", "watch", "delete"]),
    // Progress of a restore.
    ("", "pods/log", &["get"]),
    // Expanded, and deleted when damaged.
    (
        "",
        "persistentvolumeclaims",
        &["get", "list", "watch", "patch", "delete"],
    ),
    ("events.k8s.io", "events", &["create", "patch"]),
    // Secrets that a resource refers to.
    ("", "secrets", &["get"]),
];
const DRUID_GROUP: &str = "druid.gardener.cloud";
const ALL_VERBS: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

/// Group, resource, verb.
type Permission = (String, String, String);

fn required_permissions() -> BTreeSet<Permission> {
    let rights = REQUIRED_PERMISSIONS
        .iter()
        .flat_map(|(group, resource, verbs)| {
            let right = |verb: &&str| permission(group, resource, verb);
            verbs.iter().map(right).collect::<Vec<_>>()
        });
    rights.collect()
}

fn permission(group: &str, resource: &str, verb: &str) -> Permission {
    (group.to_owned(), resource.to_owned(), verb.to_owned())
}

/// Rules of all roles with this kind and name, in any namespace.
fn role_rules(kind: &str, name: &str, values: &[&str]) -> Vec<PolicyRule> {
    let objects = render_chart(&helm_binaries()[0], values).unwrap();
    let roles = filter_kind(&objects, kind);
    let roles = roles.iter().filter(|role| role["metadata"]["name"] == name);
    roles
        .flat_map(|role| serde_json::from_value::<Vec<PolicyRule>>(role["rules"].clone()).unwrap())
        .collect()
}

/// Permissions that the rules grant; the rules must not be limited to names.
fn granted_permissions(rules: &[PolicyRule]) -> BTreeSet<Permission> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        assert!(rule.resource_names.is_none() && rule.non_resource_urls.is_none());
        for group in rule.api_groups.as_ref().unwrap() {
            for resource in rule.resources.as_ref().unwrap() {
                rights.extend(
                    rule.verbs
                        .iter()
                        .map(|verb| permission(group, resource, verb)),
                );
            }
        }
    }
    rights
}

const ROLE_NAME: &str = "mainstay-etcd-mainstay";

#[test]
fn controller_role_grants_exactly_the_required_permissions() {
    assert_eq!(
        granted_permissions(&role_rules("ClusterRole", ROLE_NAME, &[])),
        required_permissions()
    );
}

#[test]
fn controller_may_apply_and_delete_every_rendered_object() {
    let mut etcd = plain_etcd();
    etcd.spec.backup.store = Some(store_spec("aws"));
    let mut resources: Vec<(String, String)> = render_etcd(&etcd)
        .to_objects()
        .unwrap()
        .into_iter()
        .map(|object| (object.resource.group, object.resource.plural))
        .collect();
    assert_eq!(render_jobs(&etcd, &RenderInput::from_etcd(&etcd)).len(), 3);
    resources.push(("batch".into(), "jobs".into()));
    let needed = required_permissions();
    for (group, resource) in resources {
        for verb in ALL_VERBS {
            let right = permission(&group, &resource, verb);
            assert!(needed.contains(&right), "{right:?}");
        }
    }
}

#[test]
fn controller_grants_pods_no_permission_it_lacks() {
    let mut etcd = plain_etcd();
    etcd.spec.backup.store = Some(store_spec("aws"));
    let mut given = render_etcd(&etcd).role.unwrap().rules.unwrap();
    for rule in &mut given {
        assert!(
            rule.resource_names.take().is_some(),
            "rule is not limited to names: {rule:?}"
        );
    }
    let given = granted_permissions(&given);
    assert!(given.is_subset(&required_permissions()), "{given:?}");
}

#[test]
fn no_role_contains_wildcards_or_escalation_verbs() {
    let everything = [
        r#"rbac={"releaseSecrets": true, "secretNamespaces": ["a", "b"]}"#,
        r#"watchNamespace="shoot""#,
    ];
    for values in [&[][..], &everything[..1], &everything[..]] {
        let objects = render_chart(&helm_binaries()[0], values).unwrap();
        let roles = [
            filter_kind(&objects, "Role"),
            filter_kind(&objects, "ClusterRole"),
        ]
        .concat();
        assert!(roles.len() >= 2);
        for role in roles {
            let text = role["rules"].to_string();
            assert!(!text.contains('*'), "{text}");
            for verb in ["escalate", "bind\"", "impersonate", "deletecollection"] {
                assert!(!text.contains(verb), "{verb}: {text}");
            }
        }
    }
}

#[test]
fn secret_access_can_be_limited_to_namespaces() {
    let values = [r#"rbac={"secretNamespaces": ["shoot-a", "shoot-b"]}"#];
    let of_secrets: BTreeSet<Permission> = [permission("", "secrets", "get")].into();
    let cluster_wide = granted_permissions(&role_rules("ClusterRole", ROLE_NAME, &values));
    assert_eq!(cluster_wide, &required_permissions() - &of_secrets);
    let secrets = "mainstay-etcd-mainstay-secrets";
    assert_eq!(
        granted_permissions(&role_rules("Role", secrets, &values)),
        of_secrets
    );
    let objects = render_chart(&helm_binaries()[0], &values).unwrap();
    for kind in ["Role", "RoleBinding"] {
        let of_kind = filter_kind(&objects, kind);
        let named = of_kind
            .iter()
            .filter(|object| object["metadata"]["name"] == secrets);
        let places: Vec<&str> = named
            .map(|object| object["metadata"]["namespace"].as_str().unwrap())
            .collect();
        assert_eq!(places, ["shoot-a", "shoot-b"], "{kind}");
    }
}

#[test]
fn secret_patch_permission_is_granted_only_when_enabled() {
    let values = [r#"rbac={"releaseSecrets": true}"#];
    let extended = granted_permissions(&role_rules("ClusterRole", ROLE_NAME, &values));
    let difference: Vec<Permission> = (&extended - &required_permissions()).into_iter().collect();
    assert_eq!(difference, [permission("", "secrets", "patch")]);
}

#[test]
fn single_namespace_installation_has_no_cluster_permissions() {
    let values = [r#"watchNamespace="shoot""#];
    let objects = render_chart(&helm_binaries()[0], &values).unwrap();
    for kind in ["ClusterRole", "ClusterRoleBinding"] {
        assert!(filter_kind(&objects, kind).is_empty(), "{kind}");
    }
    assert_eq!(
        granted_permissions(&role_rules("Role", ROLE_NAME, &values)),
        required_permissions()
    );
    for role in filter_kind(&objects, "Role") {
        let place = &role["metadata"]["namespace"];
        assert!(place == "shoot" || place == "garden", "{place}");
    }
    let deployment = filter_kind(&objects, "Deployment")[0];
    let env = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
    let named = env
        .as_array()
        .unwrap()
        .iter()
        .find(|env| env["name"] == "MAINSTAY_NAMESPACE");
    assert_eq!(named.unwrap()["value"], "shoot");
}
