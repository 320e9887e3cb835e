//! All names that are derived from the name of an Etcd.
//!
//! Consumers and clusters that etcd-druid created rely on these names; they must not change.

use mainstay_crds::Etcd;

/// Ordinal of a member in its `StatefulSet`: 0, 1, 2, …
pub type Ordinal = u32;

/// Pod of a member.
pub fn pod_name(etcd: &str, ordinal: Ordinal) -> String {
    format!("{etcd}-{ordinal}")
}

/// Name of a member in etcd, and of the Lease that it renews.
pub fn member_name(prefix: Option<&str>, etcd: &str, ordinal: Ordinal) -> String {
    let pod = pod_name(etcd, ordinal);
    match prefix {
        Some(prefix) => format!("{prefix}-{pod}"),
        None => pod,
    }
}

/// Host name of a pod for other members, behind the headless Service.
pub fn pod_host(etcd: &str, namespace: &str, pod: &str) -> String {
    format!("{pod}.{etcd}-peer.{namespace}.svc")
}

/// Names of the objects of one Etcd.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Name of the Etcd; empty before it was stored.
    pub etcd: &'a str,
    /// Namespace of the Etcd; empty before it was stored.
    pub namespace: &'a str,
    member_prefix: Option<&'a str>,
    pvc_template: Option<&'a str>,
}

impl<'a> Names<'a> {
    /// Names of the objects of `etcd`.
    pub fn new(etcd: &'a Etcd) -> Self {
        let given = |text: &'a Option<String>| text.as_deref().filter(|text| !text.is_empty());
        Self {
            etcd: etcd.metadata.name.as_deref().unwrap_or_default(),
            namespace: etcd.metadata.namespace.as_deref().unwrap_or_default(),
            member_prefix: given(&etcd.spec.member_name_prefix),
            pvc_template: given(&etcd.spec.volume_claim_template),
        }
    }

    /// `ServiceAccount` of member pods and Jobs.
    pub fn service_account(&self) -> String {
        self.etcd.to_owned()
    }

    /// Role and `RoleBinding`.
    pub fn role(&self) -> String {
        format!("druid.gardener.cloud:etcd:{}", self.etcd)
    }

    /// `StatefulSet`.
    pub fn stateful_set(&self) -> String {
        self.etcd.to_owned()
    }

    /// Pod of a member.
    pub fn pod(&self, ordinal: Ordinal) -> String {
        pod_name(self.etcd, ordinal)
    }

    /// Name of a member in etcd, and of the Lease that it renews.
    pub fn member(&self, ordinal: Ordinal) -> String {
        member_name(self.member_prefix, self.etcd, ordinal)
    }

    /// Prefix of member names before the name of the pod.
    pub fn member_prefix(&self) -> Option<&'a str> {
        self.member_prefix
    }

    /// Ordinal of a member name; `None` if the member does not belong to this Etcd.
    pub fn member_ordinal(&self, member: &str) -> Option<Ordinal> {
        let pod = match self.member_prefix {
            Some(prefix) => member.strip_prefix(prefix)?.strip_prefix('-')?,
            None => member,
        };
        self.pod_ordinal(pod)
    }

    /// Ordinal of a pod name; `None` if the pod does not belong to this Etcd.
    pub fn pod_ordinal(&self, pod: &str) -> Option<Ordinal> {
        let digits = pod.strip_prefix(self.etcd)?.strip_prefix('-')?;
        let ordinal: Ordinal = digits.parse().ok()?;
        // `parse` also accepts `01` and `+1`, which are no ordinals.
        (ordinal.to_string() == digits).then_some(ordinal)
    }

    /// Lease with the revision of the newest full snapshot.
    pub fn full_snapshot_lease(&self) -> String {
        format!("{}-full-snap", self.etcd)
    }

    /// Lease with the revision of the newest delta snapshot.
    pub fn delta_snapshot_lease(&self) -> String {
        format!("{}-delta-snap", self.etcd)
    }

    /// `PodDisruptionBudget`.
    pub fn pod_disruption_budget(&self) -> String {
        self.etcd.to_owned()
    }

    /// Service for clients.
    pub fn client_service(&self) -> String {
        format!("{}-client", self.etcd)
    }

    /// Headless Service that gives each pod a host name.
    pub fn peer_service(&self) -> String {
        format!("{}-peer", self.etcd)
    }

    /// `ConfigMap` with the configuration of etcd.
    pub fn config_map(&self) -> String {
        format!("{}-config", self.etcd)
    }

    /// `ConfigMap` through which controller, sidecars and Jobs coordinate changes of this etcd.
    pub fn coordination_config_map(&self) -> String {
        format!("{}-coordination", self.etcd)
    }

    /// Host name of the pod inside the pod itself; certificates contain it.
    pub fn local_host(&self) -> String {
        format!("{}-local", self.etcd)
    }

    /// Host name of a pod for other members.
    pub fn pod_host(&self, pod: &str) -> String {
        pod_host(self.etcd, self.namespace, pod)
    }

    /// Host name of the Service for clients.
    pub fn client_host(&self) -> String {
        format!("{}-client.{}.svc", self.etcd, self.namespace)
    }

    /// Volume claim template, and the volume of the pods.
    pub fn pvc_template(&self) -> &'a str {
        self.pvc_template.unwrap_or(self.etcd)
    }

    /// PVC of a member.
    pub fn pvc(&self, ordinal: Ordinal) -> String {
        format!("{}-{}", self.pvc_template(), self.pod(ordinal))
    }

    /// Ordinal of a PVC name; `None` if the PVC does not belong to this Etcd.
    pub fn pvc_ordinal(&self, pvc: &str) -> Option<Ordinal> {
        let pod = pvc.strip_prefix(self.pvc_template())?.strip_prefix('-')?;
        self.pod_ordinal(pod)
    }

    /// Job that compacts the backup.
    pub fn compaction_job(&self) -> String {
        format!("{}-compactor", self.etcd)
    }

    /// Job that restores the data of a member.
    pub fn restore_job(&self, ordinal: Ordinal) -> String {
        format!("{}-restore-{ordinal}", self.etcd)
    }

    /// Job of a restore drill.
    pub fn drill_job(&self) -> String {
        format!("{}-restore-drill", self.etcd)
    }

    /// Job that verifies the backup.
    pub fn verify_job(&self) -> String {
        format!("{}-verify", self.etcd)
    }
}

/// Job of an `EtcdCopyBackupsTask`.
pub fn copy_job_name(task: &str) -> String {
    format!("{task}-worker")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn etcd_named(name: &str) -> Etcd {
        let mut etcd = Etcd::new(name, mainstay_crds::EtcdSpec::default());
        etcd.metadata.namespace = Some("shoot".into());
        etcd
    }

    #[test]
    fn object_names_are_stable() {
        let etcd = etcd_named("etcd-main");
        let names = Names::new(&etcd);
        assert_eq!(names.role(), "druid.gardener.cloud:etcd:etcd-main");
        assert_eq!(names.member(2), "etcd-main-2");
        assert_eq!(names.full_snapshot_lease(), "etcd-main-full-snap");
        assert_eq!(names.client_service(), "etcd-main-client");
        assert_eq!(
            names.pod_host("etcd-main-0"),
            "etcd-main-0.etcd-main-peer.shoot.svc"
        );
        assert_eq!(names.pvc(1), "etcd-main-etcd-main-1");
        assert_eq!(names.compaction_job(), "etcd-main-compactor");
        assert_eq!(copy_job_name("move"), "move-worker");
    }

    #[test]
    fn member_name_prefix_is_not_part_of_the_pod_name() {
        let mut etcd = etcd_named("etcd-main");
        etcd.spec.member_name_prefix = Some("eu".into());
        etcd.spec.volume_claim_template = Some("main-etcd".into());
        let names = Names::new(&etcd);
        assert_eq!(names.member(0), "eu-etcd-main-0");
        assert_eq!(names.pod(0), "etcd-main-0");
        assert_eq!(names.pvc(0), "main-etcd-etcd-main-0");
        assert_eq!(names.member_ordinal("eu-etcd-main-12"), Some(12));
        assert_eq!(names.member_ordinal("etcd-main-12"), None);
    }

    #[test]
    fn pvcs_and_pods_of_an_etcd_with_a_longer_name_do_not_match() {
        let etcd = etcd_named("etcd-main");
        let names = Names::new(&etcd);
        assert_eq!(names.pvc_ordinal("etcd-main-etcd-main-1"), Some(1));
        assert_eq!(names.pvc_ordinal("etcd-main-2-etcd-main-2-0"), None);
        assert_eq!(names.pod_ordinal("etcd-main-2-0"), None);
        assert_eq!(names.pod_ordinal("etcd-main-01"), None);
    }
}
