//! What the spec asks for, with real types and every default in its place.
//!
//! **Comes in**: an [`Etcd`] as its author wrote it. **Goes out**: [`Wanted`]; later stages do not look at the raw
//! spec again, except to render objects. **Holds**: what cannot be read is a [`Problem`], never a guess.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use mainstay_crds::Etcd;
use mainstay_crds::etcd::{APPROVE_RECOVERY, RecoveryMode, VolumeGrowth};
use mainstay_crds::scalar::DurationString;

use crate::decide::upkeep::DesiredUpkeep;
use crate::observe::{Ordinal, PeerTlsStage};
use mainstay_manifests::quantity::to_bytes;
use mainstay_manifests::store::StoreProvider;

/// Asks for one reconciliation of the spec; removed when that is done.
pub const OPERATION: &str = "druid.gardener.cloud/operation";
/// The same, older.
pub const LEGACY_OPERATION: &str = "gardener.cloud/operation";
/// The value of both.
pub const RECONCILE: &str = "reconcile";
/// Leaves the spec alone while it is there.
pub const SUSPEND_RECONCILE: &str = "druid.gardener.cloud/suspend-etcd-spec-reconcile";
/// Leaves changes alone that somebody makes to objects by hand, while it is there.
pub const DISABLE_COMPONENT_PROTECTION: &str = "druid.gardener.cloud/disable-etcd-component-protection";
/// Makes nothing but configuration while it is there.
pub const DISABLE_RUNTIME_COMPONENTS: &str = "druid.gardener.cloud/disable-etcd-runtime-component-creation";
/// Goes on without the snapshot before a change, for the generation that is its value.
pub const WITHOUT_SNAPSHOT: &str = "etcd-mainstay.io/without-snapshot";
/// Keeps an Etcd until its objects are gone.
pub const FINALIZER: &str = "druid.gardener.cloud/etcd-druid";

/// More members than any etcd has; a larger number is a slip of the hand.
pub const MAX_MEMBERS: u32 = 99;
/// What a volume has when the spec does not say: 16Gi.
pub const DEFAULT_STORAGE_BYTES: u64 = 16 << 30;
/// What the sidecar does when the spec does not say.
const DEFAULT_DELTA_SECONDS: i64 = 20;
/// A sidecar takes no deltas below this.
const MIN_DELTA_SECONDS: i64 = 1;

/// What the spec asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredState {
    /// Name of the resource.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its generation.
    pub generation: i64,
    /// How many members; less than none and more than [`MOST_MEMBERS`] are refused, see [`Wanted::impossible_replicas`].
    pub replicas: u32,
    /// The number of members, if that makes no sense.
    pub invalid_replicas: Option<i32>,
    /// What member names begin with.
    pub member_prefix: Option<String>,
    /// Image of etcd, defaults applied.
    pub etcd_image: String,
    /// Bytes of each volume.
    pub storage_bytes: u64,
    /// What a larger number does to volumes that exist.
    pub volume_growth: VolumeGrowth,
    /// How backups are taken; `None` without a store.
    pub backup: Option<DesiredBackup>,
    /// What may be done about lost data.
    pub recovery: DesiredRecovery,
    /// How the backup is looked after.
    pub upkeep: DesiredUpkeep,
    /// Where each member's peers find it.
    pub peers: Peers,
    /// Whether the cluster joins one that runs.
    pub joins_existing_cluster: bool,
    /// Whether somebody else runs the members.
    pub has_external_members: bool,
    /// What the user asks for by annotation.
    pub requests: Requests,
    /// Since when the resource is to go.
    pub deletion_timestamp: Option<Timestamp>,
}

/// What may be done about lost data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredRecovery {
    /// Who decides.
    pub mode: RecoveryMode,
    /// The recovery somebody has approved, by its name.
    pub approved_id: Option<String>,
}

/// Where members find each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// Whether they talk TLS.
    pub tls: bool,
    /// Their port.
    pub port: i32,
    /// Addresses besides their own, by name of the member.
    pub additional_urls: BTreeMap<String, Vec<String>>,
}

impl Peers {
    const DEFAULT_PORT: i32 = 2380;

    fn from_etcd(etcd: &Etcd) -> Self {
        let server = &etcd.spec.etcd;
        let additional = server.additional_advertise_peer_urls.iter().flatten();
        Self {
            tls: server.peer_url_tls.is_some(),
            port: server.server_port.unwrap_or(Self::DEFAULT_PORT),
            additional_urls: additional
                .map(|more| {
                    (
                        more.member_name.clone(),
                        more.urls.iter().map(ToString::to_string).collect(),
                    )
                })
                .collect(),
        }
    }
}

/// How backups are taken.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredBackup {
    /// Cron expression of full snapshots; hourly when there is none.
    pub full_schedule: Option<String>,
    /// Seconds between two deltas; `None` when there are none.
    pub delta_period_seconds: Option<i64>,
}

/// What is done about changes somebody else makes to objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriftPolicy {
    /// They are taken back.
    #[default]
    Revert,
    /// They stay.
    Keep,
}

/// What the user asks for by annotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// To reconcile the spec once.
    pub reconcile: bool,
    /// To leave the spec alone.
    pub suspend: bool,
    /// What to do about changes of objects that were made by hand.
    pub drift_policy: DriftPolicy,
    /// To make nothing but configuration.
    pub is_runtime_disabled: bool,
    /// To change this generation without a snapshot before.
    pub skip_snapshot_generation: Option<i64>,
}

/// Why a spec cannot be worked with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// It has no namespace.
    #[error("the resource has no namespace")]
    MissingNamespace,
    /// A size cannot be read.
    #[error("spec.storageCapacity is no size: \"{text}\"")]
    InvalidStorageCapacity {
        /// What it says.
        text: String,
    },
    /// A size cannot be read.
    #[error("spec.mainstay.compaction.bytesThreshold is no size: \"{text}\"")]
    InvalidCompactionBytes {
        /// What it says.
        text: String,
    },
    /// A store nobody can talk to.
    #[error(
        "spec.backup.store.provider is \"{provider}\", which is not supported: use provider S3 with the S3 interface of the \
         Swift cluster as spec.backup.store.endpointOverride"
    )]
    SwiftUnsupported {
        /// As it is spelt.
        provider: String,
    },
    /// A period cannot be read.
    #[error("spec.backup.deltaSnapshotPeriod is no length of time: \"{text}\"")]
    InvalidDeltaPeriod {
        /// What it says.
        text: String,
    },
}

/// Reads a spec. `default_image` is the etcd of clusters that do not choose one.
pub fn validate_etcd(etcd: &Etcd, default_image: &str) -> Result<DesiredState, SpecError> {
    let spec = &etcd.spec;
    let annotations = etcd.annotations();
    let asks = |key: &str| annotations.get(key).is_some_and(|value| value == RECONCILE);
    let bootstrapped = etcd
        .status
        .as_ref()
        .is_some_and(|status| status.bootstrap_with_existing_cluster.is_some());
    let wanted = i32::try_from(count_members(etcd)).unwrap_or_default();
    Ok(DesiredState {
        name: etcd.name_any(),
        namespace: etcd.namespace().ok_or(SpecError::MissingNamespace)?,
        generation: etcd.metadata.generation.unwrap_or_default(),
        replicas: count_members(etcd),
        invalid_replicas: Some(spec.replicas).filter(|replicas| *replicas != wanted),
        member_prefix: spec
            .member_name_prefix
            .clone()
            .filter(|prefix| !prefix.is_empty()),
        etcd_image: spec
            .etcd
            .image
            .clone()
            .filter(|image| !image.is_empty())
            .unwrap_or_else(|| default_image.to_owned()),
        storage_bytes: parse_storage_bytes(etcd)?,
        volume_growth: spec.volume_growth(),
        backup: parse_backup(etcd)?,
        recovery: DesiredRecovery {
            mode: spec.recovery_mode(),
            approved_id: annotations.get(APPROVE_RECOVERY).cloned(),
        },
        upkeep: parse_upkeep(etcd)?,
        peers: Peers::from_etcd(etcd),
        joins_existing_cluster: spec.etcd.bootstrap_with_existing_cluster.is_some() && !bootstrapped,
        has_external_members: spec
            .externally_managed_member_addresses
            .as_ref()
            .is_some_and(|a| !a.is_empty()),
        requests: Requests {
            reconcile: asks(OPERATION) || asks(LEGACY_OPERATION),
            suspend: annotations.contains_key(SUSPEND_RECONCILE),
            drift_policy: if annotations.contains_key(DISABLE_COMPONENT_PROTECTION) {
                DriftPolicy::Keep
            } else {
                DriftPolicy::Revert
            },
            is_runtime_disabled: annotations.contains_key(DISABLE_RUNTIME_COMPONENTS),
            skip_snapshot_generation: annotations
                .get(WITHOUT_SNAPSHOT)
                .and_then(|generation| generation.parse().ok()),
        },
        deletion_timestamp: etcd.metadata.deletion_timestamp.as_ref().map(|time| time.0),
    })
}

/// How many members are asked for; none when the number makes no sense.
pub fn count_members(etcd: &Etcd) -> u32 {
    let members = u32::try_from(etcd.spec.replicas).unwrap_or_default();
    if members > MAX_MEMBERS { 0 } else { members }
}

fn parse_storage_bytes(etcd: &Etcd) -> Result<u64, SpecError> {
    let Some(quantity) = &etcd.spec.storage_capacity else {
        return Ok(DEFAULT_STORAGE_BYTES);
    };
    to_bytes(quantity).map_err(|_| SpecError::InvalidStorageCapacity {
        text: quantity.0.clone(),
    })
}

fn parse_upkeep(etcd: &Etcd) -> Result<DesiredUpkeep, SpecError> {
    let compaction = etcd.spec.backup.snapshot_compaction.as_ref();
    let ours = etcd.spec.mainstay.as_ref();
    let triggers = ours.and_then(|ours| ours.compaction.as_ref());
    let drill = ours.and_then(|ours| ours.restore_drill.as_ref());
    let limit = triggers.and_then(|triggers| triggers.bytes_threshold.as_ref());
    let limit = limit.map(|limit| {
        to_bytes(limit).map_err(|_| SpecError::InvalidCompactionBytes {
            text: limit.0.clone(),
        })
    });
    Ok(DesiredUpkeep {
        events_threshold: compaction.and_then(|compaction| compaction.events_threshold),
        full_snapshot_threshold: compaction.and_then(|compaction| compaction.trigger_full_snapshot_threshold),
        bytes_threshold: limit.transpose()?,
        compaction_schedule: triggers.and_then(|triggers| Some(triggers.schedule.as_ref()?.to_string())),
        drill_schedule: drill.and_then(|drill| Some(drill.schedule.as_ref()?.to_string())),
        schedules_since: etcd.creation_timestamp().map(|time| time.0),
    })
}

fn parse_backup(etcd: &Etcd) -> Result<Option<DesiredBackup>, SpecError> {
    let backup = &etcd.spec.backup;
    let provider = backup
        .store
        .as_ref()
        .and_then(|store| store.provider.as_deref())
        .filter(|provider| !provider.is_empty());
    let Some(provider) = provider else {
        return Ok(None);
    };
    if StoreProvider::from_alias(provider) == Some(StoreProvider::Swift) {
        return Err(SpecError::SwiftUnsupported {
            provider: provider.to_owned(),
        });
    }
    let seconds = |span: &DurationString| {
        let whole = span.to_duration().ok().map(|length| length.as_secs());
        whole
            .and_then(|seconds| i64::try_from(seconds).ok())
            .ok_or_else(|| SpecError::InvalidDeltaPeriod {
                text: span.to_string(),
            })
    };
    let period = backup
        .delta_snapshot_period
        .as_ref()
        .map(seconds)
        .transpose()?;
    Ok(Some(DesiredBackup {
        full_schedule: backup
            .full_snapshot_schedule
            .as_ref()
            .map(ToString::to_string),
        delta_period_seconds: Some(period.unwrap_or(DEFAULT_DELTA_SECONDS))
            .filter(|seconds| *seconds >= MIN_DELTA_SECONDS),
    }))
}

impl DesiredState {
    /// What is done now about changes made by hand. A new spec, or being asked to reconcile, takes them back once.
    pub fn drift_policy(&self, observed_generation: Option<i64>) -> DriftPolicy {
        let is_acted_on = observed_generation == Some(self.generation);
        if is_acted_on && !self.requests.reconcile {
            self.requests.drift_policy
        } else {
            DriftPolicy::Revert
        }
    }

    /// Name of a pod.
    pub fn pod_name(&self, ordinal: Ordinal) -> String {
        format!("{}-{ordinal}", self.name)
    }

    /// The name a pod has inside the cluster's network.
    pub fn pod_host(&self, ordinal: Ordinal) -> String {
        format!(
            "{}.{}-peer.{}.svc",
            self.pod_name(ordinal),
            self.name,
            self.namespace
        )
    }

    /// Where the peers of a member find it, once its pod is what the template says.
    pub fn peer_urls(&self, ordinal: Ordinal, stage: PeerTlsStage) -> Vec<String> {
        let scheme = if stage == PeerTlsStage::On {
            "https"
        } else {
            "http"
        };
        let own = format!("{scheme}://{}:{}", self.pod_host(ordinal), self.peers.port);
        let more = self.peers.additional_urls.get(&self.member_name(ordinal));
        std::iter::once(own)
            .chain(more.into_iter().flatten().cloned())
            .collect()
    }

    /// Name of a member, and of its Lease.
    pub fn member_name(&self, ordinal: Ordinal) -> String {
        match &self.member_prefix {
            Some(prefix) => format!("{prefix}-{}", self.pod_name(ordinal)),
            None => self.pod_name(ordinal),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use mainstay_crds::EtcdSpec;
    use mainstay_crds::etcd::MemberPeerUrls;
    use mainstay_crds::store::StoreSpec;

    use super::*;

    fn etcd_resource() -> Etcd {
        let mut etcd = Etcd::new(
            "main",
            EtcdSpec {
                replicas: 3,
                ..EtcdSpec::default()
            },
        );
        etcd.metadata.namespace = Some("shoot".to_owned());
        etcd
    }

    fn desired(etcd: &Etcd) -> DesiredState {
        super::validate_etcd(etcd, "etcd:3.5.21").unwrap()
    }

    #[test]
    fn an_empty_spec_has_every_default() {
        let wanted = desired(&etcd_resource());
        assert_eq!(wanted.storage_bytes, DEFAULT_STORAGE_BYTES);
        assert_eq!(wanted.etcd_image, "etcd:3.5.21");
        assert_eq!(wanted.backup, None);
        assert_eq!(wanted.member_name(Ordinal(2)), "main-2");
    }

    #[test]
    fn an_image_without_a_name_is_none() {
        let mut etcd = etcd_resource();
        etcd.spec.etcd.image = Some(String::new());
        assert_eq!(desired(&etcd).etcd_image, "etcd:3.5.21");
    }

    #[test]
    fn a_prefix_is_part_of_the_member_and_not_of_the_pod() {
        let mut etcd = etcd_resource();
        etcd.spec.member_name_prefix = Some("eu".to_owned());
        let wanted = desired(&etcd);
        assert_eq!(
            (wanted.pod_name(Ordinal(0)), wanted.member_name(Ordinal(0))),
            ("main-0".into(), "eu-main-0".into())
        );
    }

    #[test]
    fn further_addresses_belong_to_the_member_with_its_prefix() {
        let mut etcd = etcd_resource();
        etcd.spec.member_name_prefix = Some("eu".to_owned());
        etcd.spec.etcd.additional_advertise_peer_urls = Some(vec![MemberPeerUrls {
            member_name: "eu-main-1".to_owned(),
            urls: vec!["http://10.0.0.1:2380".into()],
        }]);
        let wanted = desired(&etcd);
        let own = "http://main-1.main-peer.shoot.svc:2380".to_owned();
        assert_eq!(
            wanted.peer_urls(Ordinal(1), PeerTlsStage::Off),
            [own, "http://10.0.0.1:2380".to_owned()]
        );
        assert_eq!(wanted.peer_urls(Ordinal(0), PeerTlsStage::Off).len(), 1);
    }

    #[test]
    fn a_store_without_a_period_has_the_sidecars_period() {
        let mut etcd = etcd_resource();
        etcd.spec.backup.store = Some(StoreSpec {
            provider: Some("aws".to_owned()),
            ..StoreSpec::default()
        });
        assert_eq!(desired(&etcd).backup.unwrap().delta_period_seconds, Some(20));
        etcd.spec.backup.delta_snapshot_period = Some("5m".into());
        assert_eq!(desired(&etcd).backup.unwrap().delta_period_seconds, Some(300));
        etcd.spec.backup.delta_snapshot_period = Some("0s".into());
        assert_eq!(desired(&etcd).backup.unwrap().delta_period_seconds, None);
    }

    #[test]
    fn a_store_without_a_provider_is_no_backup() {
        let mut etcd = etcd_resource();
        etcd.spec.backup.store = Some(StoreSpec::default());
        assert_eq!(desired(&etcd).backup, None);
    }

    #[test]
    fn a_store_nobody_can_talk_to_is_refused_with_a_way_out() {
        let mut etcd = etcd_resource();
        for provider in ["openstack", "Swift", "swift"] {
            etcd.spec.backup.store = Some(StoreSpec {
                provider: Some(provider.to_owned()),
                ..StoreSpec::default()
            });
            let problem = super::validate_etcd(&etcd, "etcd").unwrap_err();
            assert!(problem.to_string().contains("use provider S3"), "{problem}");
        }
    }

    #[test]
    fn a_negative_number_of_members_is_kept_for_the_refusal() {
        let mut etcd = etcd_resource();
        etcd.spec.replicas = -1;
        let wanted = desired(&etcd);
        assert_eq!((wanted.replicas, wanted.invalid_replicas), (0, Some(-1)));
    }

    #[test]
    fn a_slip_of_the_hand_is_no_number_of_members() {
        let mut etcd = etcd_resource();
        etcd.spec.replicas = 1_000_000_000;
        let wanted = desired(&etcd);
        assert_eq!(
            (wanted.replicas, wanted.invalid_replicas),
            (0, Some(1_000_000_000))
        );
    }

    #[test]
    fn only_the_right_word_asks_for_reconciliation() {
        let mut etcd = etcd_resource();
        let with = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        for (key, value, asks) in [
            (OPERATION, RECONCILE, true),
            (LEGACY_OPERATION, RECONCILE, true),
            (OPERATION, "restore", false),
        ] {
            etcd.metadata.annotations = Some(with(key, value));
            assert_eq!(desired(&etcd).requests.reconcile, asks, "{key}={value}");
        }
    }

    #[test]
    fn a_size_nobody_can_read_is_a_problem() {
        let mut etcd = etcd_resource();
        etcd.spec.storage_capacity = Some(Quantity("much".to_owned()));
        let problem = super::validate_etcd(&etcd, "etcd").unwrap_err();
        assert_eq!(
            problem,
            SpecError::InvalidStorageCapacity {
                text: "much".to_owned()
            }
        );
    }
}
