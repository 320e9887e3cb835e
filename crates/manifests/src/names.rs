//! Every name that is derived from that of an Etcd. Consumers and older installations rely on them.

use mainstay_crds::Etcd;

/// Where a member stands in its `StatefulSet`: 0, 1, 2, …
pub type Ordinal = u32;

/// The names of everything that belongs to one Etcd.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// The name of the Etcd.
    pub etcd: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    member_prefix: Option<&'a str>,
    pvc_template: Option<&'a str>,
}

impl<'a> Names<'a> {
    /// Those of `etcd`, whose own name is empty only before it was stored.
    pub fn new(etcd: &'a Etcd) -> Self {
        let given = |text: &'a Option<String>| text.as_deref().filter(|text| !text.is_empty());
        Self {
            etcd: etcd.metadata.name.as_deref().unwrap_or_default(),
            namespace: etcd.metadata.namespace.as_deref().unwrap_or_default(),
            member_prefix: given(&etcd.spec.member_name_prefix),
            pvc_template: given(&etcd.spec.volume_claim_template),
        }
    }

    /// The service account of pods and Jobs.
    pub fn service_account(&self) -> String {
        self.etcd.to_owned()
    }

    /// The Role, and the `RoleBinding` to it.
    pub fn role(&self) -> String {
        format!("druid.gardener.cloud:etcd:{}", self.etcd)
    }

    /// The `StatefulSet`.
    pub fn stateful_set(&self) -> String {
        self.etcd.to_owned()
    }

    /// A pod of the `StatefulSet`.
    pub fn pod(&self, ordinal: Ordinal) -> String {
        format!("{}-{ordinal}", self.etcd)
    }

    /// A member as etcd knows it, and the Lease it renews.
    pub fn member(&self, ordinal: Ordinal) -> String {
        match self.member_prefix {
            Some(prefix) => format!("{prefix}-{}-{ordinal}", self.etcd),
            None => self.pod(ordinal),
        }
    }

    /// What member names have before the name of their pod.
    pub fn member_prefix(&self) -> Option<&'a str> {
        self.member_prefix
    }

    /// The ordinal of a member's name; `None` for a member of somebody else.
    pub fn member_ordinal(&self, member: &str) -> Option<Ordinal> {
        let pod = match self.member_prefix {
            Some(prefix) => member.strip_prefix(prefix)?.strip_prefix('-')?,
            None => member,
        };
        self.pod_ordinal(pod)
    }

    /// The ordinal of a pod's name; `None` for a pod of somebody else.
    pub fn pod_ordinal(&self, pod: &str) -> Option<Ordinal> {
        let digits = pod.strip_prefix(self.etcd)?.strip_prefix('-')?;
        let ordinal: Ordinal = digits.parse().ok()?;
        // Neither `etcd-main-01` nor `etcd-main-+1`.
        (ordinal.to_string() == digits).then_some(ordinal)
    }

    /// The Lease that holds the revision of the newest full snapshot.
    pub fn full_snapshot_lease(&self) -> String {
        format!("{}-full-snap", self.etcd)
    }

    /// The Lease that holds the revision of the newest delta snapshot.
    pub fn delta_snapshot_lease(&self) -> String {
        format!("{}-delta-snap", self.etcd)
    }

    /// The disruption budget.
    pub fn pod_disruption_budget(&self) -> String {
        self.etcd.to_owned()
    }

    /// The Service clients use.
    pub fn client_service(&self) -> String {
        format!("{}-client", self.etcd)
    }

    /// The Service that gives each pod an address.
    pub fn peer_service(&self) -> String {
        format!("{}-peer", self.etcd)
    }

    /// The `ConfigMap` with etcd's configuration.
    pub fn config_map(&self) -> String {
        format!("{}-config", self.etcd)
    }

    /// The `ConfigMap` through which everybody who changes this etcd coordinates.
    pub fn coordination_config_map(&self) -> String {
        format!("{}-coordination", self.etcd)
    }

    /// Another name of the own pod inside the pod, which certificates carry.
    pub fn local_host(&self) -> String {
        format!("{}-local", self.etcd)
    }

    /// The host name of a pod, as members reach each other.
    pub fn pod_host(&self, pod: &str) -> String {
        format!("{pod}.{}-peer.{}.svc", self.etcd, self.namespace)
    }

    /// The host name of the Service clients use.
    pub fn client_host(&self) -> String {
        format!("{}-client.{}.svc", self.etcd, self.namespace)
    }

    /// The claim template, and the volume of the pods made from it.
    pub fn pvc_template(&self) -> &'a str {
        self.pvc_template.unwrap_or(self.etcd)
    }

    /// The volume claim of a member.
    pub fn pvc(&self, ordinal: Ordinal) -> String {
        format!("{}-{}", self.pvc_template(), self.pod(ordinal))
    }

    /// The ordinal of a volume claim's name; `None` for a claim of somebody else.
    pub fn pvc_ordinal(&self, claim: &str) -> Option<Ordinal> {
        let pod = claim
            .strip_prefix(self.pvc_template())?
            .strip_prefix('-')?;
        self.pod_ordinal(pod)
    }

    /// The Job that folds deltas into a full snapshot.
    pub fn compaction_job(&self) -> String {
        format!("{}-compactor", self.etcd)
    }

    /// The Job that restores a member's data.
    pub fn restore_job(&self, ordinal: Ordinal) -> String {
        format!("{}-restore-{ordinal}", self.etcd)
    }

    /// The Job that rehearses a restore.
    pub fn drill_job(&self) -> String {
        format!("{}-restore-drill", self.etcd)
    }

    /// The Job that checks the backup.
    pub fn verify_job(&self) -> String {
        format!("{}-verify", self.etcd)
    }
}

/// The Job of an `EtcdCopyBackupsTask`.
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
    fn names_are_those_consumers_rely_on() {
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
    fn a_prefix_is_part_of_the_member_and_not_of_the_pod() {
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
    fn claims_and_pods_of_an_etcd_with_a_longer_name_are_not_mine() {
        let etcd = etcd_named("etcd-main");
        let names = Names::new(&etcd);
        assert_eq!(
            names.pvc_ordinal("etcd-main-etcd-main-1"),
            Some(1)
        );
        assert_eq!(
            names.pvc_ordinal("etcd-main-2-etcd-main-2-0"),
            None
        );
        assert_eq!(names.pod_ordinal("etcd-main-2-0"), None);
        assert_eq!(names.pod_ordinal("etcd-main-01"), None);
    }
}
