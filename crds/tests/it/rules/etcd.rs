//! Cases of the rules of `Etcd`.

use mainstay_crds::rules::ETCD;
use serde_json::{Value, json};

use super::{RuleCase, rule_case};
use crate::admission::ResourceChange;

/// An Etcd `main` with three members, its spec merged with `patch`.
fn etcd_with(patch: Value) -> Value {
    let mut etcd = json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "Etcd",
        "metadata": { "name": "main", "namespace": "ns" },
        "spec": { "labels": {}, "replicas": 3, "etcd": {}, "backup": {} },
    });
    merge(&mut etcd["spec"], patch);
    etcd
}

fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key).or_insert(json!({})), value);
            }
        }
        (target, patch) => *target = patch,
    }
}

fn create(patch: Value) -> ResourceChange {
    ResourceChange::Create(etcd_with(patch))
}

fn update(old: Value, new: Value) -> ResourceChange {
    ResourceChange::Update(etcd_with(old), etcd_with(new))
}

fn etcd_case(
    at: &str,
    fragment: &str,
    held_by: Vec<ResourceChange>,
    rejected: Vec<ResourceChange>,
) -> RuleCase {
    rule_case(ETCD, at, fragment, held_by, rejected)
}

pub(super) fn cases() -> Vec<RuleCase> {
    let mut cases = name_cases();
    cases.extend(bootstrap_cases());
    cases.extend(immutable_cases());
    cases.extend(external_member_cases());
    cases.extend(scheme_cases());
    cases.extend(address_cases());
    cases.extend(scalar_cases());
    cases
}

/// Additional peer URLs of one member.
fn extra_urls(member: &str, urls: Value) -> Value {
    json!({ "etcd": { "additionalAdvertisePeerURLs": [{ "memberName": member, "urls": urls }] } })
}

fn extra_urls_of(member: &str) -> Value {
    extra_urls(member, json!(["http://10.0.0.1:2380"]))
}

fn with_name_prefix(mut patch: Value) -> Value {
    patch["memberNamePrefix"] = "blue".into();
    patch
}

/// An existing cluster with members of these names.
fn join_cluster(names: &[&str]) -> Value {
    let members: Vec<_> = names
        .iter()
        .map(|name| json!({ "name": name, "peerUrls": ["http://10.0.0.9:2380"] }))
        .collect();
    json!({ "etcd": { "bootstrapWithExistingCluster": {
        "members": members,
        "clientEndpoints": ["http://source.ns.svc:2379"],
    } } })
}

fn name_cases() -> Vec<RuleCase> {
    vec![
        etcd_case(
            "",
            "member names must start with",
            vec![
                create(json!({})),
                create(extra_urls_of("main-0")),
                create(with_name_prefix(extra_urls_of("blue-main-0"))),
            ],
            vec![
                create(extra_urls_of("other-0")),
                create(extra_urls_of("maine-0")),
                create(with_name_prefix(extra_urls_of("main-0"))),
            ],
        ),
        etcd_case(
            "",
            "index must be less than replicas",
            vec![
                create(extra_urls_of("main-2")),
                create(extra_urls_of("main-02")),
            ],
            vec![
                create(extra_urls_of("main-3")),
                update(json!({}), extra_urls_of("main-10")),
            ],
        ),
        etcd_case(
            "",
            "name must be unique",
            vec![create(join_cluster(&["green-0", "green-1"]))],
            vec![create(join_cluster(&["green-0", "green-1", "green-0"]))],
        ),
        etcd_case(
            "",
            "must not collide",
            vec![
                create(join_cluster(&["green-0", "mainline"])),
                create(with_name_prefix(join_cluster(&["main-0"]))),
            ],
            vec![
                create(join_cluster(&["main-7"])),
                create(with_name_prefix(join_cluster(&["blue-main-x"]))),
            ],
        ),
    ]
}

/// The same Etcd with the condition in its status.
fn with_bootstrap_condition(mut etcd: Value, status: &str) -> Value {
    etcd["status"] = json!({ "conditions": [{
        "type": "BootstrappedWithExistingCluster", "status": status, "reason": "R", "message": "M",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z",
    }] });
    etcd
}

fn bootstrap_cases() -> Vec<RuleCase> {
    let before = etcd_with(join_cluster(&["green-0"]));
    let other_members = etcd_with(join_cluster(&["green-0", "green-1"]));
    let mut other_endpoints = before.clone();
    other_endpoints["spec"]["etcd"]["bootstrapWithExistingCluster"]["clientEndpoints"] =
        json!(["http://elsewhere.ns.svc:2379"]);
    let during = |etcd: &Value| with_bootstrap_condition(etcd.clone(), "False");
    let after = |etcd: &Value| with_bootstrap_condition(etcd.clone(), "True");
    let held = |changed: &Value| {
        vec![
            ResourceChange::Update(during(&before), during(&before)),
            ResourceChange::Update(before.clone(), changed.clone()),
            ResourceChange::Update(after(&before), after(changed)),
            ResourceChange::Update(during(&before), during(&etcd_with(json!({})))),
        ]
    };
    vec![
        etcd_case(
            "",
            "bootstrapWithExistingCluster.members cannot be modified",
            held(&other_members),
            vec![ResourceChange::Update(
                during(&before),
                during(&other_members),
            )],
        ),
        etcd_case(
            "",
            "bootstrapWithExistingCluster.clientEndpoints cannot be modified",
            held(&other_endpoints),
            vec![ResourceChange::Update(
                during(&before),
                during(&other_endpoints),
            )],
        ),
        etcd_case(
            "spec.etcd",
            "cannot be added after",
            vec![
                create(join_cluster(&["green-0"])),
                update(join_cluster(&["green-0"]), json!({})),
                update(join_cluster(&["green-0"]), join_cluster(&["green-0"])),
            ],
            vec![update(json!({}), join_cluster(&["green-0"]))],
        ),
    ]
}

fn immutable_cases() -> Vec<RuleCase> {
    let mut cases = Vec::new();
    for (field, name, added) in [
        ("storageClass", "storageClass", "storageClass field"),
        (
            "volumeClaimTemplate",
            "olumeClaimTemplate",
            "volumeClaimTemplate field",
        ),
        (
            "memberNamePrefix",
            "memberNamePrefix",
            "memberNamePrefix is",
        ),
    ] {
        let with = |value: &str| json!({ field: value });
        cases.push(etcd_case(
            "spec",
            added,
            vec![
                create(with("a")),
                update(with("a"), with("a")),
                update(json!({}), json!({})),
            ],
            vec![update(json!({}), with("a")), update(with("a"), json!({}))],
        ));
        cases.push(etcd_case(
            &format!("spec.{field}"),
            name,
            vec![create(with("a")), update(with("a"), with("a"))],
            vec![update(with("a"), with("b"))],
        ));
    }
    cases
}

fn external_member_cases() -> Vec<RuleCase> {
    let external = |addresses: &[&str]| json!({ "externallyManagedMemberAddresses": addresses });
    let three = || external(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    vec![
        etcd_case(
            "spec",
            "only be set during creation",
            vec![
                create(three()),
                update(three(), three()),
                update(three(), external(&["10.0.0.1", "10.0.0.2", "10.0.0.4"])),
            ],
            vec![update(json!({}), three()), update(three(), json!({}))],
        ),
        etcd_case(
            "spec",
            "length must equal",
            vec![create(json!({})), create(three())],
            vec![create(external(&[])), create(external(&["10.0.0.1"]))],
        ),
    ]
}

/// Changes of the number of members.
pub(super) fn resize_changes() -> Vec<ResourceChange> {
    let with_replicas = |replicas: i32| json!({ "replicas": replicas });
    let sizes = [(1, 3), (3, 3), (5, 3), (3, 1), (3, 2), (3, 0), (0, 1)];
    sizes
        .map(|(old, new)| update(with_replicas(old), with_replicas(new)))
        .into()
}

fn with_tls(mut patch: Value, field: &str) -> Value {
    let tls =
        json!({ "tlsCASecretRef": { "name": "ca" }, "serverTLSSecretRef": { "name": "server" } });
    merge(&mut patch, json!({ "etcd": { field: tls } }));
    patch
}

/// An existing cluster at these URLs.
fn join_cluster_at(peer: &str, client: &str) -> Value {
    json!({ "etcd": { "bootstrapWithExistingCluster": {
        "members": [{ "name": "green-0", "peerUrls": [peer] }],
        "clientEndpoints": [client],
    } } })
}

fn scheme_cases() -> Vec<RuleCase> {
    let (plain, tls) = ("http://10.0.0.1:2380", "https://10.0.0.1:2380");
    let extra = |urls: &[&str]| extra_urls("main-0", json!(urls));
    let peer = |patch| with_tls(patch, "peerUrlTls");
    let client = |patch| with_tls(patch, "clientUrlTls");
    vec![
        etcd_case(
            "spec.etcd",
            "when peerUrlTls is enabled, all additional",
            vec![create(peer(extra(&[tls]))), create(peer(json!({})))],
            vec![create(peer(extra(&[tls, plain])))],
        ),
        etcd_case(
            "spec.etcd",
            "when peerUrlTls is not enabled, all additional",
            vec![create(extra(&[plain])), create(client(extra(&[plain])))],
            vec![create(extra(&[plain, tls]))],
        ),
        etcd_case(
            "spec.etcd",
            "when peerUrlTls is enabled, all bootstrap",
            vec![create(peer(join_cluster_at(tls, plain)))],
            vec![create(peer(join_cluster_at(plain, plain)))],
        ),
        etcd_case(
            "spec.etcd",
            "when peerUrlTls is not enabled, all bootstrap",
            vec![create(join_cluster_at(plain, plain))],
            vec![create(join_cluster_at(tls, plain))],
        ),
        etcd_case(
            "spec.etcd",
            "when clientUrlTls is enabled",
            vec![create(client(join_cluster_at(plain, tls)))],
            vec![create(client(join_cluster_at(plain, plain)))],
        ),
        etcd_case(
            "spec.etcd",
            "when clientUrlTls is not enabled",
            vec![
                create(join_cluster_at(plain, plain)),
                create(peer(join_cluster_at(tls, plain))),
            ],
            vec![create(join_cluster_at(plain, tls))],
        ),
    ]
}

fn address_cases() -> Vec<RuleCase> {
    let plain = "http://10.0.0.1:2380";
    let extra = |urls: &[&str]| extra_urls("main-0", json!(urls));
    vec![
        etcd_case(
            "spec.etcd.additionalAdvertisePeerURLs[].urls[]",
            "must be a valid http",
            vec![create(extra(&[
                "http://host",
                "http://host:2380",
                "http://[::1]:2380",
                // A URL without a host is valid for the API server, also with the CRDs of etcd-druid.
                "http://",
            ]))],
            vec![create(extra(&["ftp://host"])), create(extra(&["host:1"]))],
        ),
        etcd_case(
            "spec.etcd.bootstrapWithExistingCluster.members[].peerUrls[]",
            "must be a valid http",
            vec![create(join_cluster_at("http://host", plain))],
            vec![
                create(join_cluster_at("unix:///socket", plain)),
                create(join_cluster_at("/path", plain)),
            ],
        ),
        etcd_case(
            "spec.etcd.bootstrapWithExistingCluster.clientEndpoints[]",
            "must be a valid http",
            vec![create(join_cluster_at(plain, "http://host.svc:2379"))],
            vec![
                create(join_cluster_at(plain, "host.svc:2379")),
                create(join_cluster_at(plain, "http://a b")),
            ],
        ),
    ]
}

fn scalar_cases() -> Vec<RuleCase> {
    let periods = |delta: &str, collection: &str| json!({ "backup": { "deltaSnapshotPeriod": delta, "garbageCollectionPeriod": collection } });
    let endpoint =
        |url: &str| json!({ "backup": { "store": { "prefix": "p", "endpointOverride": url } } });
    vec![
        etcd_case(
            "spec.backup",
            "garbageCollectionPeriod must be greater",
            vec![
                create(json!({ "backup": { "deltaSnapshotPeriod": "300s" } })),
                create(json!({ "backup": { "garbageCollectionPeriod": "1s" } })),
                create(periods("300s", "43200s")),
                create(periods("59m", "1h")),
            ],
            vec![
                create(periods("300s", "300s")),
                create(periods("1h", "59m59s")),
                // CEL `getSeconds()` truncates to whole seconds.
                create(periods("1s", "1s500ms")),
            ],
        ),
        etcd_case(
            "spec.backup.store.endpointOverride",
            "valid URL",
            vec![
                create(endpoint("https://s3.example")),
                create(endpoint("http://azurite:10000/account/")),
            ],
            vec![create(endpoint("s3 example")), create(endpoint(""))],
        ),
    ]
}
