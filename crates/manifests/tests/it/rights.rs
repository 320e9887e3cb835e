//! What the chart lets the controller do: all it needs, and not one thing more.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::chart::{helms, of_kind, template};
use crate::support::{jobs, plain, rendered, store};
use mainstay_manifests::Shape;

/// What the controller does to each kind, and why.
const NEEDED: [(&str, &str, &[&str]); 23] = [
    // Looked after; the finalizer and the annotation that asks for a reconciliation are patched.
    (DRUID, "etcds", &["get", "list", "watch", "patch"]),
    // The same, and removed when they are done for as long as their author says.
    (
        DRUID,
        "etcdcopybackupstasks",
        &["get", "list", "watch", "patch", "delete"],
    ),
    (
        DRUID,
        "etcdopstasks",
        &["get", "list", "watch", "patch", "delete"],
    ),
    (DRUID, "etcds/status", &["get", "patch"]),
    (DRUID, "etcdcopybackupstasks/status", &["get", "patch"]),
    (DRUID, "etcdopstasks/status", &["get", "patch"]),
    // Owner references that block the deletion of the owner.
    (DRUID, "etcds/finalizers", &["update"]),
    (DRUID, "etcdcopybackupstasks/finalizers", &["update"]),
    (DRUID, "etcdopstasks/finalizers", &["update"]),
    // Rendered and applied.
    ("", "serviceaccounts", EVERYTHING),
    ("", "services", EVERYTHING),
    ("", "configmaps", EVERYTHING),
    ("apps", "statefulsets", EVERYTHING),
    ("policy", "poddisruptionbudgets", EVERYTHING),
    ("batch", "jobs", EVERYTHING),
    ("rbac.authorization.k8s.io", "roles", EVERYTHING),
    ("rbac.authorization.k8s.io", "rolebindings", EVERYTHING),
    // The same, and members may update theirs.
    (
        "coordination.k8s.io",
        "leases",
        &[
            "get", "list", "watch", "create", "patch", "update", "delete",
        ],
    ),
    // Replaced one at a time.
    ("", "pods", &["get", "list", "watch", "delete"]),
    // How far a restore is.
    ("", "pods/log", &["get"]),
    // Grown, and given up when damaged.
    (
        "",
        "persistentvolumeclaims",
        &["get", "list", "watch", "patch", "delete"],
    ),
    ("events.k8s.io", "events", &["create", "patch"]),
    // Those a resource names.
    ("", "secrets", &["get"]),
];
const DRUID: &str = "druid.gardener.cloud";
const EVERYTHING: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

/// Group, resource, verb.
type Right = (String, String, String);

fn needed() -> BTreeSet<Right> {
    let rights = NEEDED.iter().flat_map(|(group, resource, verbs)| {
        let right = |verb: &&str| right(group, resource, verb);
        verbs.iter().map(right).collect::<Vec<_>>()
    });
    rights.collect()
}

fn right(group: &str, resource: &str, verb: &str) -> Right {
    (group.to_owned(), resource.to_owned(), verb.to_owned())
}

/// The rules of every role of this kind and name, in any namespace.
fn rules(kind: &str, name: &str, values: &[&str]) -> Vec<PolicyRule> {
    let objects = template(&helms()[0], values).unwrap();
    let roles = of_kind(&objects, kind);
    let roles = roles.iter().filter(|role| role["metadata"]["name"] == name);
    roles
        .flat_map(|role| serde_json::from_value::<Vec<PolicyRule>>(role["rules"].clone()).unwrap())
        .collect()
}

/// What the rules grant; they are not limited to names.
fn granted(rules: &[PolicyRule]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        assert!(rule.resource_names.is_none() && rule.non_resource_urls.is_none());
        for group in rule.api_groups.as_ref().unwrap() {
            for resource in rule.resources.as_ref().unwrap() {
                rights.extend(rule.verbs.iter().map(|verb| right(group, resource, verb)));
            }
        }
    }
    rights
}

const NAME: &str = "mainstay-etcd-mainstay";

#[test]
fn the_controller_may_do_what_it_needs_and_nothing_else() {
    assert_eq!(granted(&rules("ClusterRole", NAME, &[])), needed());
}

#[test]
fn everything_that_is_rendered_may_be_applied_and_removed() {
    let mut etcd = plain();
    etcd.spec.backup.store = Some(store("aws"));
    let mut resources: Vec<(String, String)> = rendered(&etcd)
        .objects()
        .unwrap()
        .into_iter()
        .map(|object| (object.resource.group, object.resource.plural))
        .collect();
    assert_eq!(jobs(&etcd, &Shape::of(&etcd)).len(), 3);
    resources.push(("batch".into(), "jobs".into()));
    let needed = needed();
    for (group, resource) in resources {
        for verb in EVERYTHING {
            let right = right(&group, &resource, verb);
            assert!(needed.contains(&right), "{right:?}");
        }
    }
}

#[test]
fn the_controller_gives_pods_no_right_it_lacks() {
    let mut etcd = plain();
    etcd.spec.backup.store = Some(store("aws"));
    let mut given = rendered(&etcd).role.unwrap().rules.unwrap();
    for rule in &mut given {
        assert!(
            rule.resource_names.take().is_some(),
            "by name only: {rule:?}"
        );
    }
    let given = granted(&given);
    assert!(given.is_subset(&needed()), "{given:?}");
}

#[test]
fn nothing_is_allowed_wholesale_in_any_role() {
    let everything = [
        r#"rbac={"releaseSecrets": true, "secretNamespaces": ["a", "b"]}"#,
        r#"watchNamespace="shoot""#,
    ];
    for values in [&[][..], &everything[..1], &everything[..]] {
        let objects = template(&helms()[0], values).unwrap();
        let roles = [of_kind(&objects, "Role"), of_kind(&objects, "ClusterRole")].concat();
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
fn secrets_may_be_limited_to_namespaces() {
    let values = [r#"rbac={"secretNamespaces": ["shoot-a", "shoot-b"]}"#];
    let of_secrets: BTreeSet<Right> = [right("", "secrets", "get")].into();
    let cluster_wide = granted(&rules("ClusterRole", NAME, &values));
    assert_eq!(cluster_wide, &needed() - &of_secrets);
    let secrets = "mainstay-etcd-mainstay-secrets";
    assert_eq!(granted(&rules("Role", secrets, &values)), of_secrets);
    let objects = template(&helms()[0], &values).unwrap();
    for kind in ["Role", "RoleBinding"] {
        let of_kind = of_kind(&objects, kind);
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
fn secrets_are_patched_only_where_that_was_asked_for() {
    let values = [r#"rbac={"releaseSecrets": true}"#];
    let more = granted(&rules("ClusterRole", NAME, &values));
    let difference: Vec<Right> = (&more - &needed()).into_iter().collect();
    assert_eq!(difference, [right("", "secrets", "patch")]);
}

#[test]
fn an_installation_for_one_namespace_has_no_right_elsewhere() {
    let values = [r#"watchNamespace="shoot""#];
    let objects = template(&helms()[0], &values).unwrap();
    for kind in ["ClusterRole", "ClusterRoleBinding"] {
        assert!(of_kind(&objects, kind).is_empty(), "{kind}");
    }
    assert_eq!(granted(&rules("Role", NAME, &values)), needed());
    for role in of_kind(&objects, "Role") {
        let place = &role["metadata"]["namespace"];
        assert!(place == "shoot" || place == "garden", "{place}");
    }
    let deployment = of_kind(&objects, "Deployment")[0];
    let env = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
    let named = env
        .as_array()
        .unwrap()
        .iter()
        .find(|env| env["name"] == "MAINSTAY_NAMESPACE");
    assert_eq!(named.unwrap()["value"], "shoot");
}
