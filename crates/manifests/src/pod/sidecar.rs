//! The sidecar container and its flags.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use mainstay_crds::etcd::{BackupSpec, CompressionPolicy, GarbageCollectionPolicy};
use mainstay_crds::scalar::DurationString;

use super::etcd::container_port;
use super::{
    SIDECAR_CONTAINER, build_client_flags, data_mount, pod_identity_env, probes, security,
};
use crate::config;
use crate::context::RenderContext;
use crate::error::RenderError;
use crate::render_input::UrlScheme;
use crate::schedule;
use crate::store::escape_dollar;
use crate::values;

/// Default timeout of a full snapshot and of a defragmentation.
const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_mins(15);
/// Default interval at which a member renews its Lease.
const DEFAULT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);

pub(super) fn render_container(draft: &RenderContext<'_>) -> Result<Container, RenderError> {
    let backup = &draft.etcd.spec.backup;
    let mut mounts = vec![data_mount(draft)];
    mounts.extend(draft.certificates.client_mounts());
    mounts.extend(draft.certificates.backup_mounts());
    let mut env = pod_identity_env();
    if let Some(store) = &draft.store {
        mounts.extend(store.mounts.clone());
        env.extend(store.env.clone());
    }
    let image = backup.image.as_ref().filter(|image| !image.is_empty());
    Ok(Container {
        name: SIDECAR_CONTAINER.into(),
        image: Some(image.unwrap_or(&draft.settings.images.sidecar).clone()),
        image_pull_policy: draft.pull_policy(),
        command: Some(vec!["mainstay-sidecar".into()]),
        args: Some(build_args(draft)?),
        env: Some(env),
        ports: Some(vec![container_port("server", draft.ports.backup)]),
        resources: Some(values::resources_or_default(
            backup.resources.as_ref(),
            "50m",
            "128Mi",
        )),
        liveness_probe: Some(liveness_probe(draft)),
        security_context: Some(security::container_context()),
        volume_mounts: Some(mounts),
        ..Container::default()
    })
}

/// Whether the process responds. There is no readiness probe: a failing backup must not remove etcd from the
/// Service.
fn liveness_probe(draft: &RenderContext<'_>) -> Probe {
    let scheme = match UrlScheme::from_tls(draft.etcd.spec.backup.tls.as_ref()) {
        UrlScheme::Http => "HTTP",
        UrlScheme::Https => "HTTPS",
    };
    Probe {
        http_get: Some(probes::http_get_action(
            "/readyz",
            draft.ports.backup,
            scheme,
        )),
        initial_delay_seconds: Some(30),
        period_seconds: Some(20),
        timeout_seconds: Some(10),
        failure_threshold: Some(6),
        ..Probe::default()
    }
}

fn build_args(draft: &RenderContext<'_>) -> Result<Vec<String>, RenderError> {
    let spec = &draft.etcd.spec;
    let mut args = vec![
        "server".to_owned(),
        format!("--server-port={}", draft.ports.backup),
        format!("--data-dir={}", config::DATA_DIR),
        format!(
            "--endpoints={}://{}:{}",
            draft.client_scheme(),
            draft.names.local_host(),
            draft.ports.client
        ),
    ];
    let endpoints = draft.service_endpoints();
    if !endpoints.is_empty() {
        args.push(format!("--service-endpoints={}", endpoints.join(",")));
    }
    args.extend(build_tls_flags(draft));
    args.extend(build_member_flags(draft)?);
    args.extend(build_maintenance_flags(draft)?);
    args.extend(build_election_flags(&spec.backup)?);
    if let Some(store) = &draft.store {
        args.extend(store.flags.clone());
        args.extend(build_snapshot_flags(&spec.backup)?);
        args.extend(build_retention_flags(&spec.backup)?);
        if draft.has_runtime_components() {
            args.extend([
                "--enable-snapshot-lease-renewal=true".to_owned(),
                format!(
                    "--full-snapshot-lease-name={}",
                    draft.names.full_snapshot_lease()
                ),
                format!(
                    "--delta-snapshot-lease-name={}",
                    draft.names.delta_snapshot_lease()
                ),
                format!(
                    "--coordination-name={}",
                    draft.names.coordination_config_map()
                ),
            ]);
        }
    }
    Ok(args)
}

/// TLS flags for etcd and for the own listener. Sidecars call each other with the CA of etcd; if etcd has none,
/// with the CA of the sidecars.
fn build_tls_flags(draft: &RenderContext<'_>) -> Vec<String> {
    let mut args = build_client_flags(draft);
    if let Some(files) = draft.certificates.backup_listener_files() {
        if args.is_empty() {
            args.push(format!("--cacert={}", files.ca));
        }
        args.push(format!("--server-cert={}", files.certificate));
        args.push(format!("--server-key={}", files.key));
    }
    args
}

fn build_member_flags(draft: &RenderContext<'_>) -> Result<Vec<String>, RenderError> {
    let spec = &draft.etcd.spec;
    let mut args = Vec::new();
    // A pod template cannot contain URLs that differ per pod; the controller updates those members.
    let more = spec.etcd.additional_advertise_peer_urls.as_ref();
    if more.is_none_or(Vec::is_empty) && draft.has_runtime_components() {
        args.push(format!(
            "--member-peer-urls={}",
            draft.pod_peer_url("$(POD_NAME)")
        ));
    }
    if let Some(prefix) = draft.names.member_prefix() {
        args.push(format!("--member-name-prefix={prefix}"));
    }
    if draft.has_runtime_components() {
        let heartbeat = spec.etcd.heartbeat_duration.as_ref();
        let field = "spec.etcd.heartbeatDuration";
        args.push("--enable-member-lease-renewal=true".into());
        args.push(format_duration_flag(
            "k8s-heartbeat-duration",
            field,
            heartbeat,
            DEFAULT_HEARTBEAT_INTERVAL,
        )?);
    }
    Ok(args)
}

fn build_election_flags(backup: &BackupSpec) -> Result<Vec<String>, RenderError> {
    let election = backup.leader_election.clone().unwrap_or_default();
    let period = "spec.backup.leaderElection.reelectionPeriod";
    let timeout = "spec.backup.leaderElection.etcdConnectionTimeout";
    let period = format_optional_duration(
        "reelection-period",
        period,
        election.reelection_period.as_ref(),
    )?;
    let timeout = election.etcd_connection_timeout.as_ref().map(|given| {
        format_duration_flag(
            "etcd-connection-timeout-leader-election",
            timeout,
            Some(given),
            DEFAULT_OPERATION_TIMEOUT,
        )
    });
    Ok(period.into_iter().chain(timeout.transpose()?).collect())
}

fn build_maintenance_flags(draft: &RenderContext<'_>) -> Result<Vec<String>, RenderError> {
    let etcd = &draft.etcd.spec.etcd;
    // An empty value disables it; without the flag the sidecar applies its own default schedule.
    let schedule = etcd.defragmentation_schedule.as_ref();
    let schedule = schedule.map(schedule::normalize).unwrap_or_default();
    let timeout = etcd.etcd_defrag_timeout.as_ref();
    Ok(vec![
        format!("--defragmentation-schedule={}", escape_dollar(&schedule)),
        format_duration_flag(
            "etcd-defrag-timeout",
            "spec.etcd.etcdDefragTimeout",
            timeout,
            DEFAULT_OPERATION_TIMEOUT,
        )?,
    ])
}

fn build_snapshot_flags(backup: &BackupSpec) -> Result<Vec<String>, RenderError> {
    let mut args = Vec::new();
    if let Some(schedule) = &backup.full_snapshot_schedule {
        args.push(format!(
            "--schedule={}",
            escape_dollar(&schedule::normalize(schedule))
        ));
    }
    args.extend(format_optional_duration(
        "delta-snapshot-period",
        "spec.backup.deltaSnapshotPeriod",
        backup.delta_snapshot_period.as_ref(),
    )?);
    let limit = values::bytes_or_default(
        "spec.backup.deltaSnapshotMemoryLimit",
        backup.delta_snapshot_memory_limit.as_ref(),
        100 << 20,
    )?;
    let compression = backup.compression.clone().unwrap_or_default();
    let policy = match compression.policy {
        Some(CompressionPolicy::Gzip) | None => "gzip",
        Some(CompressionPolicy::Lzw) => "lzw",
        Some(CompressionPolicy::Zlib) => "zlib",
    };
    args.extend([
        format!("--delta-snapshot-memory-limit={limit}"),
        format!(
            "--compress-snapshots={}",
            compression.enabled.unwrap_or(true)
        ),
        format!("--compression-policy={policy}"),
        format_duration_flag(
            "etcd-snapshot-timeout",
            "spec.backup.etcdSnapshotTimeout",
            backup.etcd_snapshot_timeout.as_ref(),
            DEFAULT_OPERATION_TIMEOUT,
        )?,
    ]);
    Ok(args)
}

fn build_retention_flags(backup: &BackupSpec) -> Result<Vec<String>, RenderError> {
    let mut args = match backup.garbage_collection_policy {
        Some(GarbageCollectionPolicy::Exponential) => {
            vec!["--garbage-collection-policy=Exponential".to_owned()]
        }
        Some(GarbageCollectionPolicy::LimitBased) | None => vec![
            "--garbage-collection-policy=LimitBased".to_owned(),
            // Keep at least one full snapshot: zero would delete every backup.
            format!(
                "--max-backups={}",
                backup.max_backups_limit_based_gc.unwrap_or(7).max(1)
            ),
        ],
    };
    args.extend(format_optional_duration(
        "garbage-collection-period",
        "spec.backup.garbageCollectionPeriod",
        backup.garbage_collection_period.as_ref(),
    )?);
    args.extend(format_optional_duration(
        "delta-snapshot-retention-period",
        "spec.backup.deltaSnapshotRetentionPeriod",
        backup.delta_snapshot_retention_period.as_ref(),
    )?);
    Ok(args)
}

fn format_optional_duration(
    flag: &str,
    field: &'static str,
    given: Option<&DurationString>,
) -> Result<Option<String>, RenderError> {
    let value = given.map(|span| values::format_span_at_least(field, span, Duration::ZERO));
    Ok(value.transpose()?.map(|value| format!("--{flag}={value}")))
}

/// A flag that is always set, with at least one second: a timeout of zero would fail every operation.
fn format_duration_flag(
    flag: &str,
    field: &'static str,
    given: Option<&DurationString>,
    default: Duration,
) -> Result<String, RenderError> {
    let value = match given {
        Some(span) => values::format_span_at_least(field, span, Duration::from_secs(1))?,
        None => values::format_duration(default),
    };
    Ok(format!("--{flag}={value}"))
}
