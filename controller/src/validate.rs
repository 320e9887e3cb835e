//! What the spec asks for, with real types and every default in its place.
//!
//! **Comes in**: an [`Etcd`] as its author wrote it. **Goes out**: [`Wanted`]; later stages do not look at the raw
//! spec again, except to render objects. **Holds**: what cannot be read is a [`Problem`], never a guess.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use mainstay_crds::Etcd;
use mainstay_crds::etcd::{APPROVE_RECOVERY, RecoveryMode, VolumeGrowth};
use mainstay_crds::scalar::Span;

use crate::decide::upkeep::WantedUpkeep;
use crate::observe::{Ordinal, PeerStage};
use mainstay_manifests::quantity::bytes;
use mainstay_manifests::store::Provider;

/// Asks for one reconciliation of the spec; removed when that is done.
pub const OPERATION: &str = "druid.gardener.cloud/operation";
/// The same, older.
pub const LEGACY_OPERATION: &str = "gardener.cloud/operation";
/// The value of both.
pub const RECONCILE: &str = "reconcile";
/// Leaves the spec alone while it is there.
pub const SUSPEND: &str = "druid.gardener.cloud/suspend-etcd-spec-reconcile";
/// Leaves changes alone that somebody makes to objects by hand, while it is there.
pub const UNPROTECTED: &str = "druid.gardener.cloud/disable-etcd-component-protection";
/// Makes nothing but configuration while it is there.
pub const RUNTIME_DISABLED: &str = "druid.gardener.cloud/disable-etcd-runtime-component-creation";
/// Goes on without the snapshot before a change, for the generation that is its value.
pub const WITHOUT_SNAPSHOT: &str = "etcd-mainstay.io/without-snapshot";
/// Keeps an Etcd until its objects are gone.
pub const FINALIZER: &str = "druid.gardener.cloud/etcd-druid";

/// More members than any etcd has; a larger number is a slip of the hand.
pub const MOST_MEMBERS: u32 = 99;
/// What a volume has when the spec does not say: 16Gi.
pub const DEFAULT_STORAGE_BYTES: u64 = 16 << 30;
/// What the sidecar does when the spec does not say.
const DEFAULT_DELTA_SECONDS: i64 = 20;
/// A sidecar takes no deltas below this.
const SHORTEST_DELTA_SECONDS: i64 = 1;

/// What the spec asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Name of the resource.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its generation.
    pub generation: i64,
    /// How many members; less than none and more than [`MOST_MEMBERS`] are refused, see [`Wanted::impossible_replicas`].
    pub replicas: u32,
    /// The number of members, if that makes no sense.
    pub impossible_replicas: Option<i32>,
    /// What member names begin with.
    pub member_prefix: Option<String>,
    /// Image of etcd, defaults applied.
    pub etcd_image: String,
    /// Bytes of each volume.
    pub storage_bytes: u64,
    /// What a larger number does to volumes that exist.
    pub growth: VolumeGrowth,
    /// How backups are taken; `None` without a store.
    pub backup: Option<WantedBackup>,
    /// What may be done about lost data.
    pub recovery: WantedRecovery,
    /// How the backup is looked after.
    pub upkeep: WantedUpkeep,
    /// Where each member's peers find it.
    pub peers: Peers,
    /// Whether the cluster joins one that runs.
    pub joins_existing: bool,
    /// Whether somebody else runs the members.
    pub is_external: bool,
    /// What the user asks for by annotation.
    pub requests: Requests,
    /// Since when the resource is to go.
    pub deleted: Option<Timestamp>,
}

/// What may be done about lost data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedRecovery {
    /// Who decides.
    pub mode: RecoveryMode,
    /// The recovery somebody has approved, by its name.
    pub approved: Option<String>,
}

/// Where members find each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// Whether they talk TLS.
    pub tls: bool,
    /// Their port.
    pub port: i32,
    /// Addresses besides their own, by name of the member.
    pub additional: BTreeMap<String, Vec<String>>,
}

impl Peers {
    const DEFAULT_PORT: i32 = 2380;

    fn of(etcd: &Etcd) -> Self {
        let server = &etcd.spec.etcd;
        let additional = server.additional_advertise_peer_urls.iter().flatten();
        Self {
            tls: server.peer_url_tls.is_some(),
            port: server.server_port.unwrap_or(Self::DEFAULT_PORT),
            additional: additional
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
pub struct WantedBackup {
    /// Cron expression of full snapshots; hourly when there is none.
    pub schedule: Option<String>,
    /// Seconds between two deltas; `None` when there are none.
    pub delta_seconds: Option<i64>,
}

/// What is done about changes somebody else makes to objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drift {
    /// They are taken back.
    #[default]
    Repaired,
    /// They stay.
    Left,
}

/// What the user asks for by annotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// To reconcile the spec once.
    pub reconcile: bool,
    /// To leave the spec alone.
    pub suspend: bool,
    /// What to do about changes of objects that were made by hand.
    pub drift: Drift,
    /// To make nothing but configuration.
    pub no_runtime: bool,
    /// To change this generation without a snapshot before.
    pub without_snapshot: Option<i64>,
}

/// Why a spec cannot be worked with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It has no namespace.
    #[error("the resource has no namespace")]
    Namespace,
    /// A size cannot be read.
    #[error("spec.storageCapacity is no size: \"{text}\"")]
    StorageCapacity {
        /// What it says.
        text: String,
    },
    /// A size cannot be read.
    #[error("spec.mainstay.compaction.bytesThreshold is no size: \"{text}\"")]
    CompactionBytes {
        /// What it says.
        text: String,
    },
    /// A store nobody can talk to.
    #[error(
        "spec.backup.store.provider is \"{provider}\", which is not supported: use provider S3 with the S3 interface of the \
         Swift cluster as spec.backup.store.endpointOverride"
    )]
    Swift {
        /// As it is spelt.
        provider: String,
    },
    /// A period cannot be read.
    #[error("spec.backup.deltaSnapshotPeriod is no length of time: \"{text}\"")]
    DeltaPeriod {
        /// What it says.
        text: String,
    },
}

/// Reads a spec. `default_image` is the etcd of clusters that do not choose one.
pub fn etcd(etcd: &Etcd, default_image: &str) -> Result<Wanted, Problem> {
    let spec = &etcd.spec;
    let annotations = etcd.annotations();
    let asks = |key: &str| annotations.get(key).is_some_and(|value| value == RECONCILE);
    let bootstrapped = etcd
        .status
        .as_ref()
        .is_some_and(|status| status.bootstrap_with_existing_cluster.is_some());
    let wanted = i32::try_from(members(etcd)).unwrap_or_default();
    Ok(Wanted {
        name: etcd.name_any(),
        namespace: etcd.namespace().ok_or(Problem::Namespace)?,
        generation: etcd.metadata.generation.unwrap_or_default(),
        replicas: members(etcd),
        impossible_replicas: Some(spec.replicas).filter(|replicas| *replicas != wanted),
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
        storage_bytes: storage(etcd)?,
        growth: spec.volume_growth(),
        backup: backup(etcd)?,
        recovery: WantedRecovery {
            mode: spec.recovery_mode(),
            approved: annotations.get(APPROVE_RECOVERY).cloned(),
        },
        upkeep: upkeep(etcd)?,
        peers: Peers::of(etcd),
        joins_existing: spec.etcd.bootstrap_with_existing_cluster.is_some() && !bootstrapped,
        is_external: spec
            .externally_managed_member_addresses
            .as_ref()
            .is_some_and(|a| !a.is_empty()),
        requests: Requests {
            reconcile: asks(OPERATION) || asks(LEGACY_OPERATION),
            suspend: annotations.contains_key(SUSPEND),
            drift: if annotations.contains_key(UNPROTECTED) {
                Drift::Left
            } else {
                Drift::Repaired
            },
            no_runtime: annotations.contains_key(RUNTIME_DISABLED),
            without_snapshot: annotations
                .get(WITHOUT_SNAPSHOT)
                .and_then(|generation| generation.parse().ok()),
        },
        deleted: etcd.metadata.deletion_timestamp.as_ref().map(|time| time.0),
    })
}

/// How many members are asked for; none when the number makes no sense.
pub fn members(etcd: &Etcd) -> u32 {
    let members = u32::try_from(etcd.spec.replicas).unwrap_or_default();
    if members > MOST_MEMBERS { 0 } else { members }
}

fn storage(etcd: &Etcd) -> Result<u64, Problem> {
    let Some(quantity) = &etcd.spec.storage_capacity else {
        return Ok(DEFAULT_STORAGE_BYTES);
    };
    bytes(quantity).map_err(|_| Problem::StorageCapacity {
        text: quantity.0.clone(),
    })
}

fn upkeep(etcd: &Etcd) -> Result<WantedUpkeep, Problem> {
    let compaction = etcd.spec.backup.snapshot_compaction.as_ref();
    let ours = etcd.spec.mainstay.as_ref();
    let triggers = ours.and_then(|ours| ours.compaction.as_ref());
    let drill = ours.and_then(|ours| ours.restore_drill.as_ref());
    let limit = triggers.and_then(|triggers| triggers.bytes_threshold.as_ref());
    let limit = limit.map(|limit| {
        bytes(limit).map_err(|_| Problem::CompactionBytes {
            text: limit.0.clone(),
        })
    });
    Ok(WantedUpkeep {
        events: compaction.and_then(|compaction| compaction.events_threshold),
        full_events: compaction.and_then(|compaction| compaction.trigger_full_snapshot_threshold),
        bytes: limit.transpose()?,
        compaction: triggers.and_then(|triggers| Some(triggers.schedule.as_ref()?.to_string())),
        drill: drill.and_then(|drill| Some(drill.schedule.as_ref()?.to_string())),
        since: etcd.creation_timestamp().map(|time| time.0),
    })
}

fn backup(etcd: &Etcd) -> Result<Option<WantedBackup>, Problem> {
    let backup = &etcd.spec.backup;
    let provider = backup
        .store
        .as_ref()
        .and_then(|store| store.provider.as_deref())
        .filter(|provider| !provider.is_empty());
    let Some(provider) = provider else {
        return Ok(None);
    };
    if Provider::from_alias(provider) == Some(Provider::Swift) {
        return Err(Problem::Swift {
            provider: provider.to_owned(),
        });
    }
    let seconds = |span: &Span| {
        let whole = span.to_duration().ok().map(|length| length.as_secs());
        whole
            .and_then(|seconds| i64::try_from(seconds).ok())
            .ok_or_else(|| Problem::DeltaPeriod {
                text: span.to_string(),
            })
    };
    let period = backup
        .delta_snapshot_period
        .as_ref()
        .map(seconds)
        .transpose()?;
    Ok(Some(WantedBackup {
        schedule: backup
            .full_snapshot_schedule
            .as_ref()
            .map(ToString::to_string),
        delta_seconds: Some(period.unwrap_or(DEFAULT_DELTA_SECONDS))
            .filter(|seconds| *seconds >= SHORTEST_DELTA_SECONDS),
    }))
}

impl Wanted {
    /// What is done now about changes made by hand. A new spec, or being asked to reconcile, takes them back once.
    pub fn drift(&self, observed_generation: Option<i64>) -> Drift {
        let is_acted_on = observed_generation == Some(self.generation);
        if is_acted_on && !self.requests.reconcile {
            self.requests.drift
        } else {
            Drift::Repaired
        }
    }

    /// Name of a pod.
    pub fn pod(&self, ordinal: Ordinal) -> String {
        format!("{}-{ordinal}", self.name)
    }

    /// The name a pod has inside the cluster's network.
    pub fn host(&self, ordinal: Ordinal) -> String {
        format!(
            "{}.{}-peer.{}.svc",
            self.pod(ordinal),
            self.name,
            self.namespace
        )
    }

    /// Where the peers of a member find it, once its pod is what the template says.
    pub fn peer_urls(&self, ordinal: Ordinal, stage: PeerStage) -> Vec<String> {
        let scheme = if stage == PeerStage::On {
            "https"
        } else {
            "http"
        };
        let own = format!("{scheme}://{}:{}", self.host(ordinal), self.peers.port);
        let more = self.peers.additional.get(&self.member(ordinal));
        std::iter::once(own)
            .chain(more.into_iter().flatten().cloned())
            .collect()
    }

    /// Name of a member, and of its Lease.
    pub fn member(&self, ordinal: Ordinal) -> String {
        match &self.member_prefix {
            Some(prefix) => format!("{prefix}-{}", self.pod(ordinal)),
            None => self.pod(ordinal),
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

    fn resource() -> Etcd {
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

    fn wanted(etcd: &Etcd) -> Wanted {
        super::etcd(etcd, "etcd:3.5.21").unwrap()
    }

    #[test]
    fn an_empty_spec_has_every_default() {
        let wanted = wanted(&resource());
        assert_eq!(wanted.storage_bytes, DEFAULT_STORAGE_BYTES);
        assert_eq!(wanted.etcd_image, "etcd:3.5.21");
        assert_eq!(wanted.backup, None);
        assert_eq!(wanted.member(Ordinal(2)), "main-2");
    }

    #[test]
    fn an_image_without_a_name_is_none() {
        let mut etcd = resource();
        etcd.spec.etcd.image = Some(String::new());
        assert_eq!(wanted(&etcd).etcd_image, "etcd:3.5.21");
    }

    #[test]
    fn a_prefix_is_part_of_the_member_and_not_of_the_pod() {
        let mut etcd = resource();
        etcd.spec.member_name_prefix = Some("eu".to_owned());
        let wanted = wanted(&etcd);
        assert_eq!(
            (wanted.pod(Ordinal(0)), wanted.member(Ordinal(0))),
            ("main-0".into(), "eu-main-0".into())
        );
    }

    #[test]
    fn further_addresses_belong_to_the_member_with_its_prefix() {
        let mut etcd = resource();
        etcd.spec.member_name_prefix = Some("eu".to_owned());
        etcd.spec.etcd.additional_advertise_peer_urls = Some(vec![MemberPeerUrls {
            member_name: "eu-main-1".to_owned(),
            urls: vec!["http://10.0.0.1:2380".into()],
        }]);
        let wanted = wanted(&etcd);
        let own = "http://main-1.main-peer.shoot.svc:2380".to_owned();
        assert_eq!(
            wanted.peer_urls(Ordinal(1), PeerStage::Off),
            [own, "http://10.0.0.1:2380".to_owned()]
        );
        assert_eq!(wanted.peer_urls(Ordinal(0), PeerStage::Off).len(), 1);
    }

    #[test]
    fn a_store_without_a_period_has_the_sidecars_period() {
        let mut etcd = resource();
        etcd.spec.backup.store = Some(StoreSpec {
            provider: Some("aws".to_owned()),
            ..StoreSpec::default()
        });
        assert_eq!(wanted(&etcd).backup.unwrap().delta_seconds, Some(20));
        etcd.spec.backup.delta_snapshot_period = Some("5m".into());
        assert_eq!(wanted(&etcd).backup.unwrap().delta_seconds, Some(300));
        etcd.spec.backup.delta_snapshot_period = Some("0s".into());
        assert_eq!(wanted(&etcd).backup.unwrap().delta_seconds, None);
    }

    #[test]
    fn a_store_without_a_provider_is_no_backup() {
        let mut etcd = resource();
        etcd.spec.backup.store = Some(StoreSpec::default());
        assert_eq!(wanted(&etcd).backup, None);
    }

    #[test]
    fn a_store_nobody_can_talk_to_is_refused_with_a_way_out() {
        let mut etcd = resource();
        for provider in ["openstack", "Swift", "swift"] {
            etcd.spec.backup.store = Some(StoreSpec {
                provider: Some(provider.to_owned()),
                ..StoreSpec::default()
            });
            let problem = super::etcd(&etcd, "etcd").unwrap_err();
            assert!(problem.to_string().contains("use provider S3"), "{problem}");
        }
    }

    #[test]
    fn a_negative_number_of_members_is_kept_for_the_refusal() {
        let mut etcd = resource();
        etcd.spec.replicas = -1;
        let wanted = wanted(&etcd);
        assert_eq!((wanted.replicas, wanted.impossible_replicas), (0, Some(-1)));
    }

    #[test]
    fn a_slip_of_the_hand_is_no_number_of_members() {
        let mut etcd = resource();
        etcd.spec.replicas = 1_000_000_000;
        let wanted = wanted(&etcd);
        assert_eq!(
            (wanted.replicas, wanted.impossible_replicas),
            (0, Some(1_000_000_000))
        );
    }

    #[test]
    fn only_the_right_word_asks_for_reconciliation() {
        let mut etcd = resource();
        let with = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        for (key, value, asks) in [
            (OPERATION, RECONCILE, true),
            (LEGACY_OPERATION, RECONCILE, true),
            (OPERATION, "restore", false),
        ] {
            etcd.metadata.annotations = Some(with(key, value));
            assert_eq!(wanted(&etcd).requests.reconcile, asks, "{key}={value}");
        }
    }

    #[test]
    fn a_size_nobody_can_read_is_a_problem() {
        let mut etcd = resource();
        etcd.spec.storage_capacity = Some(Quantity("much".to_owned()));
        let problem = super::etcd(&etcd, "etcd").unwrap_err();
        assert_eq!(
            problem,
            Problem::StorageCapacity {
                text: "much".to_owned()
            }
        );
    }
}
