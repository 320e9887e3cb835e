//! CEL rules: validation that a schema alone cannot express, attached to nodes of the schemas.
//!
//! There is one table per resource, read by [`definition`](crate::crd).
//!
//! **Invariants**: an API server rejects what etcd-druid's rules reject, with the same messages, and nothing more. Rules
//! on our own fields concern those fields only. One rule of etcd-druid is left out: `replicas` may be lowered, because
//! the controller supports scale-in. The controller relies on no rule: a resource may be older than the rules.
//!
//! A rule that mentions `oldSelf` is evaluated on updates only, and only if the old object has the field.

/// A CEL rule and its position in the schema.
#[derive(Clone, Copy, Debug)]
pub struct CelRule {
    /// Dotted path from the root of the resource; `[]` stands for the items of a list.
    pub path: &'static str,
    /// CEL expression that must be true.
    pub rule: &'static str,
    /// Message that the user reads when the rule is violated.
    pub message: &'static str,
}

const fn cel_rule(path: &'static str, rule: &'static str, message: &'static str) -> CelRule {
    CelRule {
        path,
        rule,
        message,
    }
}

const IMMUTABLE: &str = "self == oldSelf";
const HTTP_URL: &str = "isURL(self) && (self.startsWith('http://') || self.startsWith('https://'))";
const PEER_URL_MESSAGE: &str =
    "must be a valid http:// or https:// URL (e.g., https://10.0.0.1:2380)";

/// Prefix of every rule on additional peer URLs: the rule holds if there are none.
macro_rules! extra {
    ($rest:literal) => {
        concat!("!has(self.additionalAdvertisePeerURLs) || ", $rest)
    };
}

/// The same for the existing cluster to join.
macro_rules! joining {
    ($rest:literal) => {
        concat!("!has(self.bootstrapWithExistingCluster) || ", $rest)
    };
}

/// CEL expression: the prefix of the names of this Etcd's own members.
macro_rules! own_names {
    () => {
        "(has(self.spec.memberNamePrefix) ? self.spec.memberNamePrefix + '-' : '') \
         + self.metadata.name + '-'"
    };
}

/// The rule holds unless an Etcd is still joining an existing cluster.
macro_rules! joined_or {
    ($rest:literal) => {
        concat!(
            "!has(self.spec.etcd.bootstrapWithExistingCluster) \
             || !has(oldSelf.spec.etcd.bootstrapWithExistingCluster) \
             || !has(self.status) || !has(self.status.conditions) \
             || self.status.conditions.all(c, \
             c.type != 'BootstrappedWithExistingCluster' || c.status != 'False') || ",
            $rest
        )
    };
}

/// The rules of `Etcd`.
pub const ETCD: &[CelRule] = &[
    cel_rule(
        "",
        concat!(
            "!has(self.spec.etcd.additionalAdvertisePeerURLs) \
             || self.spec.etcd.additionalAdvertisePeerURLs.all(m, m.memberName.startsWith(",
            own_names!(),
            "))"
        ),
        "additionalAdvertisePeerURLs member names must start with the Etcd resource name followed by a dash",
    ),
    cel_rule(
        "",
        "!has(self.spec.etcd.additionalAdvertisePeerURLs) \
         || self.spec.etcd.additionalAdvertisePeerURLs.all(m, \
         int(m.memberName.substring(m.memberName.lastIndexOf('-') + 1)) < self.spec.replicas)",
        "additionalAdvertisePeerURLs member name index must be less than replicas",
    ),
    cel_rule(
        "",
        joined_or!(
            "self.spec.etcd.bootstrapWithExistingCluster.members \
             == oldSelf.spec.etcd.bootstrapWithExistingCluster.members"
        ),
        "etcd.spec.etcd.bootstrapWithExistingCluster.members cannot be modified while the bootstrap is in \
         progress",
    ),
    cel_rule(
        "",
        joined_or!(
            "self.spec.etcd.bootstrapWithExistingCluster.clientEndpoints \
             == oldSelf.spec.etcd.bootstrapWithExistingCluster.clientEndpoints"
        ),
        "etcd.spec.etcd.bootstrapWithExistingCluster.clientEndpoints cannot be modified while the bootstrap \
         is in progress",
    ),
    cel_rule(
        "",
        "!has(self.spec.etcd.bootstrapWithExistingCluster) \
         || self.spec.etcd.bootstrapWithExistingCluster.members.all(m, \
         self.spec.etcd.bootstrapWithExistingCluster.members.exists_one(n, n.name == m.name))",
        "bootstrapWithExistingCluster.members[*].name must be unique",
    ),
    cel_rule(
        "",
        concat!(
            "!has(self.spec.etcd.bootstrapWithExistingCluster) \
             || self.spec.etcd.bootstrapWithExistingCluster.members.all(m, !m.name.startsWith(",
            own_names!(),
            "))"
        ),
        "bootstrapWithExistingCluster.members[*].name must not collide with a target member (must not start \
         with the target Etcd's member-name prefix)",
    ),
    // A rule on the field itself is not evaluated when the field is added or removed.
    cel_rule(
        "spec",
        "has(self.storageClass) == has(oldSelf.storageClass)",
        "etcd.spec.storageClass field cannot be added or removed dynamically.",
    ),
    cel_rule(
        "spec",
        "has(self.volumeClaimTemplate) == has(oldSelf.volumeClaimTemplate)",
        "etcd.spec.volumeClaimTemplate field cannot be added or removed dynamically.",
    ),
    cel_rule(
        "spec",
        "has(self.memberNamePrefix) == has(oldSelf.memberNamePrefix)",
        "etcd.spec.memberNamePrefix is an immutable field.",
    ),
    cel_rule(
        "spec",
        "has(self.externallyManagedMemberAddresses) == has(oldSelf.externallyManagedMemberAddresses)",
        "etcd.spec.externallyManagedMemberAddresses field must only be set during creation.",
    ),
    cel_rule(
        "spec",
        "!has(self.externallyManagedMemberAddresses) \
         || self.externallyManagedMemberAddresses.size() == self.replicas",
        "etcd.spec.externallyManagedMemberAddresses length must equal to etcd.spec.replicas.",
    ),
    cel_rule(
        "spec.storageClass",
        IMMUTABLE,
        "etcd.spec.storageClass is an immutable field",
    ),
    cel_rule(
        "spec.volumeClaimTemplate",
        IMMUTABLE,
        "etcd.spec.VolumeClaimTemplate is an immutable field",
    ),
    cel_rule(
        "spec.memberNamePrefix",
        IMMUTABLE,
        "etcd.spec.memberNamePrefix is an immutable field",
    ),
    cel_rule(
        "spec.backup",
        "!has(self.deltaSnapshotPeriod) || !has(self.garbageCollectionPeriod) \
         || duration(self.garbageCollectionPeriod).getSeconds() \
         > duration(self.deltaSnapshotPeriod).getSeconds()",
        "etcd.spec.backup.garbageCollectionPeriod must be greater than etcd.spec.backup.deltaSnapshotPeriod",
    ),
    cel_rule(
        "spec.backup.store.endpointOverride",
        "isURL(self)",
        "endpoint override must be a valid URL.",
    ),
    cel_rule(
        "spec.etcd",
        extra!(
            "!has(self.peerUrlTls) \
             || self.additionalAdvertisePeerURLs.all(m, m.urls.all(u, u.startsWith('https://')))"
        ),
        "when peerUrlTls is enabled, all additional advertise peer URLs must use https://",
    ),
    cel_rule(
        "spec.etcd",
        extra!(
            "has(self.peerUrlTls) \
             || self.additionalAdvertisePeerURLs.all(m, m.urls.all(u, u.startsWith('http://')))"
        ),
        "when peerUrlTls is not enabled, all additional advertise peer URLs must use http://",
    ),
    cel_rule(
        "spec.etcd",
        joining!(
            "!has(self.peerUrlTls) || self.bootstrapWithExistingCluster.members.all(m, \
             m.peerUrls.all(u, u.startsWith('https://')))"
        ),
        "when peerUrlTls is enabled, all bootstrapWithExistingCluster member peer URLs must use https://",
    ),
    cel_rule(
        "spec.etcd",
        joining!(
            "has(self.peerUrlTls) || self.bootstrapWithExistingCluster.members.all(m, \
             m.peerUrls.all(u, u.startsWith('http://')))"
        ),
        "when peerUrlTls is not enabled, all bootstrapWithExistingCluster member peer URLs must use http://",
    ),
    cel_rule(
        "spec.etcd",
        joining!(
            "!has(self.clientUrlTls) || self.bootstrapWithExistingCluster.clientEndpoints.all(u, \
             u.startsWith('https://'))"
        ),
        "when clientUrlTls is enabled, all bootstrapWithExistingCluster clientEndpoints must use https://",
    ),
    cel_rule(
        "spec.etcd",
        joining!(
            "has(self.clientUrlTls) || self.bootstrapWithExistingCluster.clientEndpoints.all(u, \
             u.startsWith('http://'))"
        ),
        "when clientUrlTls is not enabled, all bootstrapWithExistingCluster clientEndpoints must use http://",
    ),
    cel_rule(
        "spec.etcd",
        joining!("has(oldSelf.bootstrapWithExistingCluster)"),
        "etcd.spec.etcd.bootstrapWithExistingCluster cannot be added after the Etcd resource has been created",
    ),
    cel_rule(
        "spec.etcd.additionalAdvertisePeerURLs[].urls[]",
        HTTP_URL,
        PEER_URL_MESSAGE,
    ),
    cel_rule(
        "spec.etcd.bootstrapWithExistingCluster.members[].peerUrls[]",
        HTTP_URL,
        PEER_URL_MESSAGE,
    ),
    cel_rule(
        "spec.etcd.bootstrapWithExistingCluster.clientEndpoints[]",
        HTTP_URL,
        "must be a valid http:// or https:// URL (e.g., https://etcd-source-client.source-ns.svc:2379)",
    ),
];

/// The rules of `EtcdCopyBackupsTask`.
pub const COPY: &[CelRule] = &[
    cel_rule(
        "spec.sourceStore.endpointOverride",
        "isURL(self)",
        "endpoint override must be a valid URL.",
    ),
    cel_rule(
        "spec.targetStore.endpointOverride",
        "isURL(self)",
        "endpoint override must be a valid URL.",
    ),
];

/// The rules of `EtcdOpsTask`.
pub const OPS: &[CelRule] = &[
    cel_rule("spec.config", IMMUTABLE, "config is immutable"),
    cel_rule(
        "spec.ttlSecondsAfterFinished",
        IMMUTABLE,
        "ttlSecondsAfterFinished is immutable",
    ),
    cel_rule("spec.etcdName", IMMUTABLE, "etcdName is immutable"),
    cel_rule(
        "spec.config.onDemandSnapshot",
        "self.type != 'delta' || !has(self.isFinal) || !self.isFinal",
        "isFinal must be false (or omitted) when type is 'delta'",
    ),
    cel_rule(
        "spec.config.restore",
        "[has(self.toRevision), has(self.toTime), has(self.fromFull)].filter(given, given).size() <= 1",
        "at most one of toRevision, toTime and fromFull may be set",
    ),
];
