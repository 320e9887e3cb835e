//! `spec.etcd`: how etcd runs.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NAME_PATTERN;
use crate::scalar::{Schedule, DurationString, Url};
use crate::tls::{PeerTlsConfig, SecretReference, TlsConfig};

/// How etcd runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdConfig {
    /// Size of the database at which etcd stops accepting writes. Default: `8Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quantity>,
    /// How many raft entries a member applies before it snapshots its raft log. Default: 10000. More
    /// entries cost memory and let slow members catch up without a whole snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_count: Option<i64>,
    /// Whether etcd answers JSON over HTTP besides gRPC. Default: false.
    #[serde(
        rename = "enableGRPCGateway",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_grpc_gateway: Option<bool>,
    /// When members give unused pages of the database back, one member after another, the leader
    /// last. Default: never. An argument of the sidecar, so changing it restarts the members one at a
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defragmentation_schedule: Option<Schedule>,
    /// Port for the traffic between members. Default: 2380.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_port: Option<i32>,
    /// Port for clients. Default: 2379.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_port: Option<i32>,
    /// Port on which the container answers whether it is ready. Default: 9095.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapper_port: Option<i32>,
    /// Image of etcd. Default: the one the controller was installed with. A newer etcd is rolled out one
    /// minor version at a time after a snapshot; an older minor version is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Accepted and ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_secret_ref: Option<SecretReference>,
    /// How much etcd measures. Default: `basic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsLevel>,
    /// Resources of the etcd container. Default: requests of 50m CPU and 128Mi memory. What is given
    /// replaces the default as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Certificates for clients. Each secret holds `tls.crt` and `tls.key`; what they contain may be renewed
    /// at any time without a restart. Default: clients talk plain HTTP.
    #[serde(
        rename = "clientUrlTls",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub client_url_tls: Option<TlsConfig>,
    /// Addresses members announce to each other besides their own, per member: for members that are
    /// also reached through a load balancer or from another network.
    #[serde(
        rename = "additionalAdvertisePeerURLs",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 10))]
    pub additional_advertise_peer_urls: Option<Vec<MemberPeerUrls>>,
    /// Certificates for the traffic between members. Each secret holds `tls.crt` and `tls.key`; what they
    /// contain may be renewed at any time without a restart. Default: members talk plain HTTP. It can be
    /// switched on and off on a running cluster.
    #[serde(
        rename = "peerUrlTls",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub peer_url_tls: Option<PeerTlsConfig>,
    /// How long one defragmentation may take. Default: `15m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_defrag_timeout: Option<DurationString>,
    /// How often a member renews its Lease, by which others see that it lives. Default: `10s`. It is not
    /// raft's heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_duration: Option<DurationString>,
    /// What the Service for clients carries. A change takes effect at once, without a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_service: Option<ClientService>,
    /// How the database keeps account of its free pages. Default: `array`. `map` is faster on databases of
    /// many gigabytes and lets smaller ones grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_bbolt_freelist_type: Option<FreelistType>,
    /// A running cluster whose members this Etcd joins instead of starting a new one. It can be given
    /// when the Etcd is created, not added later; it can be removed once the members have joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_with_existing_cluster: Option<BootstrapWithExistingCluster>,
}

/// How much etcd measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MetricsLevel {
    /// Counters and gauges.
    Basic,
    /// Histograms of gRPC calls too.
    Extensive,
}

/// How the database keeps account of its free pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FreelistType {
    /// A sorted list.
    Array,
    /// A hash map.
    Map,
}

/// What the Service for clients carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientService {
    /// Annotations of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Labels of the Service. They win over labels the controller sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Which members a client's traffic should go to. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<TrafficDistribution>,
}

/// Which members a client's traffic should go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficDistribution {
    /// Those in the client's zone.
    PreferSameZone,
    /// The one on the client's node.
    PreferSameNode,
    /// Those in the client's zone; the older name.
    PreferClose,
}

/// Addresses one member announces besides its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberPeerUrls {
    /// The member: `<etcd>-<index>`, with the name prefix in front where there is one.
    #[schemars(length(max = 253), regex(pattern = MEMBER_PATTERN))]
    pub member_name: String,
    /// Its further addresses. They start with `https://` when there are certificates for members,
    /// with `http://` otherwise.
    #[schemars(length(min = 1, max = 5), extend("x-kubernetes-list-type" = "set"))]
    pub urls: Vec<Url>,
}

/// A name followed by an index.
pub const MEMBER_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?-[0-9]+$";

/// A running cluster to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapWithExistingCluster {
    /// Its members. They cannot change while the new ones are joining.
    #[schemars(length(min = 1, max = 10), extend("x-kubernetes-list-type" = "atomic"))]
    pub members: Vec<BootstrapMember>,
    /// Where its clients reach it. They start with `https://` when there are certificates for clients,
    /// with `http://` otherwise, and cannot change while the new members are joining.
    #[schemars(length(min = 1, max = 10), extend("x-kubernetes-list-type" = "set"))]
    pub client_endpoints: Vec<Url>,
}

/// A member of a running cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapMember {
    /// Its name in that cluster.
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// Where other members reach it. They start with `https://` when there are certificates for members,
    /// with `http://` otherwise.
    #[schemars(length(min = 1, max = 5), extend("x-kubernetes-list-type" = "set"))]
    pub peer_urls: Vec<Url>,
}
