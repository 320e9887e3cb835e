//! The addresses of the cluster.
//!
//! All are in 198.18.0.0/15, which RFC 2544 reserves for benchmarks, so they do not collide with the networks of the
//! machine.

use std::net::Ipv4Addr;

/// The machine's end of the link.
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The node's end: the API server, the S3 server and the name server answer here.
pub const NODE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Prefix length of the link's network.
pub const LINK_BITS: u8 = 30;
/// Addresses of pods.
pub const PODS: &str = "198.18.16.0/20";
/// Addresses of services.
pub const SERVICES: &str = "198.19.0.0/16";
/// Address of the API server's Service: Kubernetes uses the first of [`SERVICES`].
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);

/// Port of the API server.
pub const API_PORT: u16 = 6443;
/// Port of the S3 server.
pub const S3_PORT: u16 = 8333;
/// Port of the SeaweedFS filer; a bucket is a directory in it.
pub const FILER_PORT: u16 = 8888;

/// Name of the only node.
pub const NODE_NAME: &str = "mainstay";
/// Cluster domain.
pub const DOMAIN: &str = "cluster.local";
/// The machine's device of the link. The kernel removes it with the cluster's network namespace.
pub const HOST_DEVICE: &str = "mnst0";

/// URL of the API server, for pods and for this machine.
pub fn api_url() -> String {
    format!("https://{NODE}:{API_PORT}")
}

/// URL of the S3 server, for pods and for this machine.
pub fn s3_url() -> String {
    format!("http://{NODE}:{S3_PORT}")
}
