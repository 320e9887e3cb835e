//! `spec.etcd`: settings of etcd.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NAME_PATTERN;
use crate::scalar::{DurationString, Schedule, Url};
use crate::tls::{PeerTlsConfig, SecretReference, TlsConfig};

/// Settings of etcd.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EtcdConfig {
    /// Database size at which etcd stops accepting writes (`--quota-backend-bytes`). Default: `8Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quantity>,
    /// Number of raft entries that a member applies before it writes a raft snapshot (`--snapshot-count`).
    /// Default: 10000. A higher number uses more memory; slow followers can then catch up from the log instead
    /// of a full snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_count: Option<i64>,
    /// Serve the JSON gateway over HTTP in addition to gRPC. Default: false.
    #[serde(
        rename = "enableGRPCGateway",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_grpc_gateway: Option<bool>,
    /// When the members are defragmented, one after another, the leader last. Default: never. It is an argument
    /// of the sidecar, so a change restarts the members one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defragmentation_schedule: Option<Schedule>,
    /// Port for traffic between members (peer port). Default: 2380.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_port: Option<i32>,
    /// Port for clients. Default: 2379.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_port: Option<i32>,
    /// Port of the readiness endpoint of the etcd container. Default: 9095.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrapper_port: Option<i32>,
    /// Image of etcd. Default: the image that the controller is configured with. Upgrades go one minor version
    /// at a time, each after a snapshot. A downgrade to an older minor version is rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Accepted and ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_secret_ref: Option<SecretReference>,
    /// Detail level of the metrics of etcd. Default: `basic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MetricsLevel>,
    /// Resources of the etcd container. Default: requests of 50m CPU and 128Mi memory. A given value replaces
    /// the whole default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// TLS for clients. Certificate secrets contain `tls.crt` and `tls.key` and can be renewed at any time
    /// without a restart. Default: plain HTTP.
    #[serde(
        rename = "clientUrlTls",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub client_url_tls: Option<TlsConfig>,
    /// Additional peer URLs that members advertise, for example for members that are also reached through a
    /// load balancer or from another network. Default: none.
    #[serde(
        rename = "additionalAdvertisePeerURLs",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 10))]
    pub additional_advertise_peer_urls: Option<Vec<MemberPeerUrls>>,
    /// TLS for traffic between members. Certificate secrets contain `tls.crt` and `tls.key` and can be renewed
    /// at any time without a restart. Default: plain HTTP. TLS can be switched on and off while the cluster
    /// runs.
    #[serde(
        rename = "peerUrlTls",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub peer_url_tls: Option<PeerTlsConfig>,
    /// Timeout of the defragmentation of one member. Default: `15m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_defrag_timeout: Option<DurationString>,
    /// Interval at which a member renews its Lease, which shows that the member is alive. Default: `10s`. This
    /// is not the raft heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_duration: Option<DurationString>,
    /// Settings of the Service for clients. A change takes effect at once and restarts no member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_service: Option<ClientService>,
    /// Data structure of the free page list of the database. Default: `array`. `map` is faster for databases of
    /// many gigabytes, but makes small databases grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_bbolt_freelist_type: Option<FreelistType>,
    /// Existing etcd cluster that the members join instead of bootstrapping a new cluster. It can only be set
    /// when the Etcd is created. It can be removed after the members have joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_with_existing_cluster: Option<BootstrapWithExistingCluster>,
}

/// Detail level of the metrics of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MetricsLevel {
    /// Counters and gauges.
    Basic,
    /// Also histograms of gRPC calls.
    Extensive,
}

/// Data structure of the free page list of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FreelistType {
    /// A sorted array.
    Array,
    /// A hash map.
    Map,
}

/// Settings of the Service for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientService {
    /// Annotations of the Service. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Labels of the Service. They override labels that the controller sets. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Which members receive the traffic of a client. Default: any member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<TrafficDistribution>,
}

/// Which members receive the traffic of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficDistribution {
    /// Members in the zone of the client.
    PreferSameZone,
    /// The member on the node of the client.
    PreferSameNode,
    /// Older name of `PreferSameZone`.
    PreferClose,
}

/// Additional peer URLs of one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberPeerUrls {
    /// Name of the member: `<etcd>-<index>`, after the member name prefix if there is one.
    #[schemars(length(max = 253), regex(pattern = MEMBER_PATTERN))]
    pub member_name: String,
    /// Additional peer URLs of the member. They must start with `https://` if `peerUrlTls` is set, otherwise
    /// with `http://`.
    #[schemars(length(min = 1, max = 5), extend("x-kubernetes-list-type" = "set"))]
    pub urls: Vec<Url>,
}

/// A name, a dash and an index.
pub const MEMBER_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?-[0-9]+$";

/// Existing etcd cluster to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapWithExistingCluster {
    /// Members of the existing cluster. Immutable while the new members are joining.
    #[schemars(length(min = 1, max = 10), extend("x-kubernetes-list-type" = "atomic"))]
    pub members: Vec<BootstrapMember>,
    /// Client URLs of the existing cluster. They must start with `https://` if `clientUrlTls` is set, otherwise
    /// with `http://`. Immutable while the new members are joining.
    #[schemars(length(min = 1, max = 10), extend("x-kubernetes-list-type" = "set"))]
    pub client_endpoints: Vec<Url>,
}

/// Member of the existing cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BootstrapMember {
    /// Name of the member in the existing cluster.
    #[schemars(length(min = 1, max = 253), regex(pattern = NAME_PATTERN))]
    pub name: String,
    /// Peer URLs of the member. They must start with `https://` if `peerUrlTls` is set, otherwise with
    /// `http://`.
    #[schemars(length(min = 1, max = 5), extend("x-kubernetes-list-type" = "set"))]
    pub peer_urls: Vec<Url>,
}
