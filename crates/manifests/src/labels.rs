//! Labels and selectors, in one place.
//!
//! ```text
//! of_etcd:   managed-by, part-of                selects: StatefulSet (cannot ever change), PVCs
//! members:   + component=etcd-statefulset       selects: Services, disruption budget
//! of_object: of_etcd + name, component          labels of every object, and of member pods
//! of_job_pod: managed-by, name, component, etcd no part-of, so that nothing above selects it
//! ```

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::names::Names;

/// Labels.
pub type Labels = BTreeMap<String, String>;

/// Who looks after an object. The value is the peer's, since consumers select on it.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`].
pub const MANAGED_BY_DRUID: &str = "etcd-druid";
/// The Etcd, or the task, an object belongs to.
pub const PART_OF: &str = "app.kubernetes.io/part-of";
/// The name of the object.
pub const NAME: &str = "app.kubernetes.io/name";
/// What the object is for.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// The Etcd the pod of a Job works for. It stands in for [`PART_OF`], which only members have.
pub const JOB_ETCD: &str = "etcd-mainstay.io/etcd";

/// How long the value of a label may be.
const MAX_VALUE_LEN: usize = 63;

/// What an object is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the kind it is named after")]
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
    /// The value of [`COMPONENT`].
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

/// What everything of one Etcd has in common.
pub fn for_etcd(etcd: &str) -> Labels {
    to_labels([(MANAGED_BY, MANAGED_BY_DRUID), (PART_OF, etcd)])
}

/// A name as the value of a label: `-` for `:`, and not longer than a value may be.
fn to_label_value(name: &str) -> String {
    let name: String = name.chars().take(MAX_VALUE_LEN).collect();
    let name = name.replace(':', "-");
    name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

/// The labels of an object of an Etcd, or of a task.
pub fn for_object(owner: &str, name: &str, component: Component) -> Labels {
    let mut all = for_etcd(owner);
    all.insert(NAME.into(), to_label_value(name));
    all.insert(COMPONENT.into(), component.name().into());
    all
}

/// The labels of a Job's pods, which no selector of the members matches.
pub fn for_job_pod(owner: &str, name: &str, component: Component) -> Labels {
    to_labels([
        (MANAGED_BY, MANAGED_BY_DRUID),
        (NAME, &to_label_value(name)),
        (COMPONENT, component.name()),
        (JOB_ETCD, owner),
    ])
}

/// Selects the pods of the `StatefulSet`, as it always has.
pub fn stateful_set_selector(names: &Names<'_>) -> LabelSelector {
    LabelSelector {
        match_labels: Some(for_etcd(names.etcd)),
        ..LabelSelector::default()
    }
}

/// Selects members and nothing else.
pub fn member_selector(names: &Names<'_>) -> Labels {
    let mut all = for_etcd(names.etcd);
    all.insert(COMPONENT.into(), Component::StatefulSet.name().into());
    all
}

/// Selects members, as `status.selector` of an Etcd and a list request spell it.
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
    fn the_name_of_an_object_becomes_a_value_a_label_may_have() {
        assert_eq!(
            to_label_value("druid.gardener.cloud:etcd:a"),
            "druid.gardener.cloud-etcd-a"
        );
        let long = format!("{}-{}", "a".repeat(62), "b".repeat(20));
        assert_eq!(to_label_value(&long), "a".repeat(62));
        assert_eq!(to_label_value(&"x".repeat(63)).len(), 63);
    }
}
