//! The `ConfigMap`: one configuration of etcd for all members.
//!
//! It has the keys of etcd, with two exceptions that come from etcd-druid: the advertised URLs are maps from member to
//! URLs, and the name is a placeholder. `mainstay-restorer init` generates the configuration file of a member from it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use mainstay_crds::etcd::{CompactionMode, FreelistType, MetricsLevel};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::context::RenderContext;
use crate::error::RenderError;
use crate::labels::Component;
use crate::meta;
use crate::names::Ordinal;
use crate::render_input::UrlScheme;
use crate::tls::PemFiles;

/// Key of the configuration in the `ConfigMap`.
pub const KEY: &str = "etcd.conf.yaml";
/// Data directory on the volume of a member.
pub const DATA_DIR: &str = "/var/etcd/data/new.etcd";

/// Configuration of etcd in the `ConfigMap`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct EtcdConfigFile {
    name: &'static str,
    data_dir: &'static str,
    metrics: &'static str,
    snapshot_count: i64,
    #[serde(rename = "enable-grpc-gateway")]
    enable_grpc_gateway: bool,
    quota_backend_bytes: u64,
    initial_cluster_token: &'static str,
    auto_compaction_mode: &'static str,
    auto_compaction_retention: String,
    listen_peer_urls: String,
    listen_client_urls: String,
    listen_metrics_urls: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_transport_security: Option<TransportSecurity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_transport_security: Option<TransportSecurity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    member_name_prefix: Option<String>,
    next_cluster_version_compatible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend_bbolt_freelist_type: Option<&'static str>,
    #[serde(flatten)]
    membership: MembershipConfig,
}

/// Settings that change with the membership. etcd uses them only at bootstrap, so a change must not restart a
/// member.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
struct MembershipConfig {
    initial_cluster_state: &'static str,
    initial_cluster: String,
    initial_advertise_peer_urls: BTreeMap<String, Vec<String>>,
    advertise_client_urls: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct TransportSecurity {
    cert_file: String,
    key_file: String,
    client_cert_auth: bool,
    trusted_ca_file: String,
    auto_tls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    skip_client_san_verification: Option<bool>,
}

impl TransportSecurity {
    fn new(files: PemFiles, skip_client_san_verification: Option<bool>) -> Self {
        let PemFiles {
            ca,
            certificate,
            key,
        } = files;
        Self {
            cert_file: certificate,
            key_file: key,
            client_cert_auth: true,
            trusted_ca_file: ca,
            auto_tls: false,
            skip_client_san_verification,
        }
    }
}

/// The `ConfigMap`, and the checksum of the settings whose change requires a restart.
pub(crate) fn render_config_map(
    draft: &RenderContext<'_>,
) -> Result<(ConfigMap, String), RenderError> {
    let encode = |file: &EtcdConfigFile| {
        serde_norway::to_string(file).map_err(|source| RenderError::EncodeConfig { source })
    };
    let mut file = build_config_file(draft);
    let text = encode(&file)?;
    // The checksum excludes the membership: adding a member must not restart the others.
    file.membership = MembershipConfig::default();
    let without_membership = encode(&file)?;
    let name = draft.names.config_map();
    let map = ConfigMap {
        metadata: meta::build_metadata(draft.etcd, &name, Component::ConfigMap),
        data: Some(BTreeMap::from([(KEY.to_owned(), text)])),
        ..ConfigMap::default()
    };
    Ok((map, hex::encode(Sha256::digest(without_membership))))
}

fn build_config_file(draft: &RenderContext<'_>) -> EtcdConfigFile {
    let spec = &draft.etcd.spec;
    let shared = spec.shared_config.as_ref();
    let (client, peer) = (draft.client_scheme(), draft.input.peer_tls.scheme());
    let listen = |scheme: UrlScheme, port: u16| format!("{scheme}://0.0.0.0:{port}");
    EtcdConfigFile {
        // Placeholder: `mainstay-restorer init` writes the name of the member.
        name: "etcd-config",
        data_dir: DATA_DIR,
        metrics: match spec.etcd.metrics {
            Some(MetricsLevel::Extensive) => "extensive",
            Some(MetricsLevel::Basic) | None => "basic",
        },
        snapshot_count: spec.etcd.snapshot_count.unwrap_or(10_000),
        enable_grpc_gateway: spec.etcd.enable_grpc_gateway.unwrap_or(false),
        quota_backend_bytes: draft.quota_bytes,
        initial_cluster_token: "etcd-cluster",
        auto_compaction_mode: match shared.and_then(|shared| shared.auto_compaction_mode) {
            Some(CompactionMode::Revision) => "revision",
            Some(CompactionMode::Periodic) | None => "periodic",
        },
        auto_compaction_retention: shared
            .and_then(|shared| shared.auto_compaction_retention.clone())
            .unwrap_or_else(|| "30m".into()),
        listen_peer_urls: listen(peer, draft.ports.peer),
        listen_client_urls: listen(client, draft.ports.client),
        // Plain HTTP, because the kubelet has no client certificate for the probes.
        listen_metrics_urls: listen(UrlScheme::Http, draft.ports.metrics),
        client_transport_security: draft
            .certificates
            .client_listener_files()
            .map(|files| TransportSecurity::new(files, None)),
        peer_transport_security: draft.certificates.peer_listener_files().map(|files| {
            let skip = draft.certificates.skip_client_san_verification();
            TransportSecurity::new(files, skip)
        }),
        member_name_prefix: draft.names.member_prefix().map(str::to_owned),
        // Lets etcd 3.4 open data of 3.5, as in etcd-druid.
        next_cluster_version_compatible: true,
        backend_bbolt_freelist_type: spec
            .etcd
            .backend_bbolt_freelist_type
            .map(|kind| match kind {
                FreelistType::Array => "array",
                FreelistType::Map => "map",
            }),
        membership: build_membership(draft),
    }
}

fn build_membership(draft: &RenderContext<'_>) -> MembershipConfig {
    let desired = u32::try_from(draft.etcd.spec.replicas).unwrap_or_default();
    // During scale-in, a member that is not removed yet still needs its URLs.
    let ordinals = 0..desired.max(draft.input.replicas);
    let by_name = |ordinal: Ordinal, urls: Vec<String>| (draft.names.member(ordinal), urls);
    MembershipConfig {
        initial_cluster_state: draft.input.cluster_state.name(),
        initial_cluster: format_initial_cluster(draft),
        initial_advertise_peer_urls: ordinals
            .clone()
            .map(|ordinal| by_name(ordinal, draft.member_peer_urls(ordinal)))
            .collect(),
        advertise_client_urls: ordinals
            .map(|ordinal| by_name(ordinal, vec![draft.member_client_url(ordinal)]))
            .collect(),
    }
}

fn format_initial_cluster(draft: &RenderContext<'_>) -> String {
    let own = draft.input.initial_members.iter().flat_map(|ordinal| {
        let name = draft.names.member(*ordinal);
        let urls = draft.member_peer_urls(*ordinal);
        urls.into_iter().map(move |url| format!("{name}={url}"))
    });
    let existing = draft
        .etcd
        .spec
        .etcd
        .bootstrap_with_existing_cluster
        .as_ref();
    let others = existing.into_iter().flat_map(|cluster| {
        cluster.members.iter().flat_map(|member| {
            let urls = member.peer_urls.iter();
            urls.map(|url| format!("{}={url}", member.name))
        })
    });
    own.chain(others).collect::<Vec<_>>().join(",")
}
