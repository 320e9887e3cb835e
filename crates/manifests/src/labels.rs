//! Labels and selectors.
//!
//! ```text
//! of_etcd:   managed-by, part-of                selects: StatefulSet (immutable), PVCs
//! members:   + component=etcd-statefulset       selects: Services, PodDisruptionBudget
//! of_object: of_etcd + name, component          labels of every object, and of member pods
//! of_job_pod: managed-by, name, component, etcd no part-of, so that no selector above matches it
//! ```

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::names::Names;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Label with the manager of an object. The value is that of etcd-druid, because consumers select on it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_DRUID: &str = "etcd-druid";
/// Label with the Etcd or the task that an object belongs to.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// Label with the name of the object.
pub const NAME: &str = "app.kubernetes.io/name";
/// Label with the purpose of the object.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// Label of Job pods with the Etcd that they work for. They do not have [`PART_OF`], which selects members.
pub const JOB_ETCD: &str = "etcd-mainstay.io/etcd";

/// Kubernetes limit of label values.
const MAX_VALUE_LEN: usize = 63;

/// Purpose of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named after the object kind")]
pub enum Component {
    ServiceAccount,
    Role,
    RoleBinding,
    MemberLease,
    SnapshotLease,
    PodDisruptionBudget,
    ClientService,
    PeerService,
    ConfigMap,
    StatefulSet,
    CompactionJob,
    CopyJob,
    RestoreJob,
    DrillJob,
    VerifyJob,
    Coordination,
}

impl Component {
    /// Value of [`COMPONENT`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::ServiceAccount => "etcd-service-account",
            Self::Role => "etcd-role",
            Self::RoleBinding => "etcd-role-binding",
            Self::MemberLease => "etcd-member-lease",
            Self::SnapshotLease => "etcd-snapshot-lease",
            Self::PodDisruptionBudget => "etcd-pdb",
            Self::ClientService => "etcd-client-service",
            Self::PeerService => "etcd-peer-service",
            Self::ConfigMap => "etcd-configmap",
            Self::StatefulSet => "etcd-statefulset",
            Self::CompactionJob => "etcd-snapshot-compaction-job",
            Self::CopyJob => "etcd-copy-backups-job",
            Self::RestoreJob => "etcd-restore-job",
            Self::DrillJob => "etcd-restore-drill-job",
            Self::VerifyJob => "etcd-verify-backup-job",
            Self::Coordination => "etcd-coordination",
        }
    }
}

fn to_labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Labels that all objects of one Etcd share.
pub fn for_etcd(etcd: &str) -> Labels {
    to_labels([(MANAGED_BY, MANAGED_BY_DRUID), (PART_OF, etcd)])
}

/// Converts a name to a label value: replaces `:` by `-` and truncates it to the limit.
fn to_label_value(name: &str) -> String {
    let name: String = name.chars().take(MAX_VALUE_LEN).collect();
    let name = name.replace(':', "-");
    // Truncation can leave a trailing dash, which a label value must not have.
    name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

/// Labels of an object of an Etcd or a task.
pub fn for_object(owner: &str, name: &str, component: Component) -> Labels {
    let mut all = for_etcd(owner);
    all.insert(NAME.into(), to_label_value(name));
    all.insert(COMPONENT.into(), component.name().into());
    all
}

/// Labels of the pods of a Job, which no member selector matches.
pub fn for_job_pod(owner: &str, name: &str, component: Component) -> Labels {
    to_labels([
        (MANAGED_BY, MANAGED_BY_DRUID),
        (NAME, &to_label_value(name)),
        (COMPONENT, component.name()),
        (JOB_ETCD, owner),
    ])
}

/// Selector of the `StatefulSet`. It is immutable, so it must stay what etcd-druid created.
pub fn stateful_set_selector(names: &Names<'_>) -> LabelSelector {
    LabelSelector {
        match_labels: Some(for_etcd(names.etcd)),
        ..LabelSelector::default()
    }
}

/// Labels that select member pods only.
pub fn member_selector(names: &Names<'_>) -> Labels {
    let mut all = for_etcd(names.etcd);
    all.insert(COMPONENT.into(), Component::StatefulSet.name().into());
    all
}

/// Member selector as a string, for `status.selector` and list requests.
pub fn format_member_selector(names: &Names<'_>) -> String {
    let pairs: Vec<String> = member_selector(names)
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_name_becomes_a_valid_label_value() {
        assert_eq!(
            to_label_value("druid.gardener.cloud:etcd:a"),
            "druid.gardener.cloud-etcd-a"
        );
        let long = format!("{}-{}", "a".repeat(62), "b".repeat(20));
        assert_eq!(to_label_value(&long), "a".repeat(62));
        assert_eq!(to_label_value(&"x".repeat(63)).len(), 63);
    }
}
