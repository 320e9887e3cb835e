//! Validates a spec and converts it to the desired state, with parsed types and all defaults applied.
//!
//! Later stages do not read the raw spec again, except to render objects. Invariant: a value that cannot be parsed is
//! an error, never a default.

use kube::ResourceExt;
use mainstay_crds::Etcd;
use mainstay_crds::etcd::APPROVE_RECOVERY;
use mainstay_crds::scalar::DurationString;

use crate::model::annotations::{
    DISABLE_COMPONENT_PROTECTION, DISABLE_RUNTIME_COMPONENTS, LEGACY_OPERATION, OPERATION,
    RECONCILE, SUSPEND_RECONCILE, WITHOUT_SNAPSHOT,
};
use crate::model::{
    DesiredBackup, DesiredRecovery, DesiredState, DesiredUpkeep, DriftPolicy, Peers, Requests,
    count_members,
};
use mainstay_ids::StorageProvider;
use mainstay_manifests::quantity::to_bytes;
use mainstay_manifests::store::provider_from_alias;

/// 16Gi, as with etcd-druid.
pub(crate) const DEFAULT_STORAGE_BYTES: u64 = 16 << 30;
/// The sidecar's default.
const DEFAULT_DELTA_SECONDS: i64 = 20;
const DEFAULT_PEER_PORT: i32 = 2380;
/// The sidecar takes no delta snapshots when the period is shorter.
const MIN_DELTA_SECONDS: i64 = 1;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SpecError {
    #[error("metadata.namespace is empty")]
    MissingNamespace,
    #[error("spec.storageCapacity: invalid quantity \"{text}\"")]
    InvalidStorageCapacity { text: String },
    #[error("spec.mainstay.compaction.bytesThreshold: invalid quantity \"{text}\"")]
    InvalidCompactionBytes { text: String },
    #[error(
        "spec.backup.store.provider \"{provider}\" is not supported: use provider S3 with the S3 API of the \
         Swift cluster as spec.backup.store.endpointOverride"
    )]
    SwiftUnsupported {
        /// The alias as the spec spells it.
        provider: String,
    },
    #[error("spec.backup.deltaSnapshotPeriod: invalid duration \"{text}\"")]
    InvalidDeltaPeriod { text: String },
}

/// Validates a spec. `default_image` is the etcd image of specs without one.
pub(crate) fn validate_etcd(etcd: &Etcd, default_image: &str) -> Result<DesiredState, SpecError> {
    let spec = &etcd.spec;
    let annotations = etcd.annotations();
    let requests_reconcile =
        |key: &str| annotations.get(key).is_some_and(|value| value == RECONCILE);
    let bootstrapped = etcd
        .status
        .as_ref()
        .is_some_and(|status| status.bootstrap_with_existing_cluster.is_some());
    let accepted = i32::try_from(count_members(etcd)).unwrap_or_default();
    Ok(DesiredState {
        name: etcd.name_any(),
        namespace: etcd.namespace().ok_or(SpecError::MissingNamespace)?,
        generation: etcd.metadata.generation.unwrap_or_default(),
        replicas: count_members(etcd),
        invalid_replicas: Some(spec.replicas).filter(|replicas| *replicas != accepted),
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
        peers: parse_peers(etcd),
        // Joining is done once the status records it.
        joins_existing_cluster: spec.etcd.bootstrap_with_existing_cluster.is_some()
            && !bootstrapped,
        has_external_members: spec
            .externally_managed_member_addresses
            .as_ref()
            .is_some_and(|a| !a.is_empty()),
        requests: Requests {
            reconcile: requests_reconcile(OPERATION) || requests_reconcile(LEGACY_OPERATION),
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

fn parse_peers(etcd: &Etcd) -> Peers {
    let server = &etcd.spec.etcd;
    let additional = server.additional_advertise_peer_urls.iter().flatten();
    let urls = additional.map(|more| {
        let urls = more.urls.iter().map(ToString::to_string).collect();
        (more.member_name.clone(), urls)
    });
    Peers {
        tls: server.peer_url_tls.is_some(),
        port: server.server_port.unwrap_or(DEFAULT_PEER_PORT),
        additional_urls: urls.collect(),
    }
}

fn parse_storage_bytes(etcd: &Etcd) -> Result<u64, SpecError> {
    // etcd-druid defaults this in code, not in the CRD.
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
        full_snapshot_threshold: compaction
            .and_then(|compaction| compaction.trigger_full_snapshot_threshold),
        bytes_threshold: limit.transpose()?,
        compaction_schedule: triggers
            .and_then(|triggers| Some(triggers.schedule.as_ref()?.to_string())),
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
    // There is no Swift client here; refused before any object is changed.
    if provider_from_alias(provider) == Some(StorageProvider::Swift) {
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
            // A period below 1 s disables delta snapshots, as with etcd-backup-restore.
            .filter(|seconds| *seconds >= MIN_DELTA_SECONDS),
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use mainstay_crds::EtcdSpec;
    use mainstay_crds::etcd::MemberPeerUrls;
    use mainstay_crds::store::StoreSpec;

    use super::*;
    use crate::model::{Ordinal, PeerTlsStage};

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
        validate_etcd(etcd, "etcd:3.5.21").unwrap()
    }

    #[test]
    fn empty_spec_has_every_default() {
        let desired_state = desired(&etcd_resource());
        assert_eq!(desired_state.storage_bytes, DEFAULT_STORAGE_BYTES);
        assert_eq!(desired_state.etcd_image, "etcd:3.5.21");
        assert_eq!(desired_state.backup, None);
        assert_eq!(desired_state.member_name(Ordinal(2)), "main-2");
    }

    #[test]
    fn empty_image_falls_back_to_the_default() {
        let mut etcd = etcd_resource();
        etcd.spec.etcd.image = Some(String::new());
        assert_eq!(desired(&etcd).etcd_image, "etcd:3.5.21");
    }

    #[test]
    fn name_prefix_applies_to_the_member_and_not_to_the_pod() {
        let mut etcd = etcd_resource();
        etcd.spec.member_name_prefix = Some("eu".to_owned());
        let desired_state = desired(&etcd);
        assert_eq!(
            (
                desired_state.pod_name(Ordinal(0)),
                desired_state.member_name(Ordinal(0))
            ),
            ("main-0".into(), "eu-main-0".into())
        );
    }

    #[test]
    fn additional_peer_urls_belong_to_the_prefixed_member_name() {
        let mut etcd = etcd_resource();
        etcd.spec.member_name_prefix = Some("eu".to_owned());
        etcd.spec.etcd.additional_advertise_peer_urls = Some(vec![MemberPeerUrls {
            member_name: "eu-main-1".to_owned(),
            urls: vec!["http://10.0.0.1:2380".into()],
        }]);
        let desired_state = desired(&etcd);
        let own = "http://main-1.main-peer.shoot.svc:2380".to_owned();
        assert_eq!(
            desired_state.peer_urls(Ordinal(1), PeerTlsStage::Off),
            [own, "http://10.0.0.1:2380".to_owned()]
        );
        assert_eq!(
            desired_state.peer_urls(Ordinal(0), PeerTlsStage::Off).len(),
            1
        );
    }

    #[test]
    fn store_without_a_delta_period_has_the_sidecar_default() {
        let mut etcd = etcd_resource();
        etcd.spec.backup.store = Some(StoreSpec {
            provider: Some("aws".to_owned()),
            ..StoreSpec::default()
        });
        assert_eq!(
            desired(&etcd).backup.unwrap().delta_period_seconds,
            Some(20)
        );
        etcd.spec.backup.delta_snapshot_period = Some("5m".into());
        assert_eq!(
            desired(&etcd).backup.unwrap().delta_period_seconds,
            Some(300)
        );
        etcd.spec.backup.delta_snapshot_period = Some("0s".into());
        assert_eq!(desired(&etcd).backup.unwrap().delta_period_seconds, None);
    }

    #[test]
    fn store_without_a_provider_disables_backup() {
        let mut etcd = etcd_resource();
        etcd.spec.backup.store = Some(StoreSpec::default());
        assert_eq!(desired(&etcd).backup, None);
    }

    #[test]
    fn unsupported_store_provider_is_refused_with_an_alternative() {
        let mut etcd = etcd_resource();
        for provider in ["openstack", "Swift", "swift"] {
            etcd.spec.backup.store = Some(StoreSpec {
                provider: Some(provider.to_owned()),
                ..StoreSpec::default()
            });
            let problem = validate_etcd(&etcd, "etcd").unwrap_err();
            assert!(problem.to_string().contains("use provider S3"), "{problem}");
        }
    }

    #[test]
    fn negative_replicas_are_kept_for_the_refusal() {
        let mut etcd = etcd_resource();
        etcd.spec.replicas = -1;
        let desired_state = desired(&etcd);
        assert_eq!(
            (desired_state.replicas, desired_state.invalid_replicas),
            (0, Some(-1))
        );
    }

    #[test]
    fn implausibly_large_replicas_are_invalid() {
        let mut etcd = etcd_resource();
        etcd.spec.replicas = 1_000_000_000;
        let desired_state = desired(&etcd);
        assert_eq!(
            (desired_state.replicas, desired_state.invalid_replicas),
            (0, Some(1_000_000_000))
        );
    }

    #[test]
    fn only_the_reconcile_value_requests_a_reconcile() {
        let mut etcd = etcd_resource();
        let with = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        for (key, value, requests_reconcile) in [
            (OPERATION, RECONCILE, true),
            (LEGACY_OPERATION, RECONCILE, true),
            (OPERATION, "restore", false),
        ] {
            etcd.metadata.annotations = Some(with(key, value));
            assert_eq!(
                desired(&etcd).requests.reconcile,
                requests_reconcile,
                "{key}={value}"
            );
        }
    }

    #[test]
    fn unreadable_storage_capacity_is_an_error() {
        let mut etcd = etcd_resource();
        etcd.spec.storage_capacity = Some(Quantity("much".to_owned()));
        let problem = validate_etcd(&etcd, "etcd").unwrap_err();
        assert_eq!(
            problem,
            SpecError::InvalidStorageCapacity {
                text: "much".to_owned()
            }
        );
    }
}
