//! Who has which address.
//!
//! All of them are of 198.18.0.0/15, which is set aside for trying out networks: no machine has a
//! neighbour there, however its own networks are numbered.

use std::net::Ipv4Addr;

/// The machine's end of the link.
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The node's end: the API server, the S3 server and the name server answer here.
pub const NODE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Bits of the network the two ends are in.
pub const LINK_BITS: u8 = 30;
/// Addresses of pods.
pub const PODS: &str = "198.18.16.0/20";
/// Addresses of services.
pub const SERVICES: &str = "198.19.0.0/16";
/// The service of the API server, always the first of [`SERVICES`].
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);

/// Where the API server listens.
pub const API_PORT: u16 = 6443;
/// Where the S3 server listens.
pub const S3_PORT: u16 = 8333;
/// Where the S3 server's files are managed; a bucket is a directory there.
pub const FILER_PORT: u16 = 8888;

/// The only node's name.
pub const NODE_NAME: &str = "mainstay";
/// The domain of all services.
pub const DOMAIN: &str = "cluster.local";
/// The machine's device of the link. It goes when the world goes.
pub const HOST_DEVICE: &str = "mnst0";

/// The URL of the API server, for pods as for this machine.
pub fn api_url() -> String {
    format!("https://{NODE}:{API_PORT}")
}

/// The URL of the S3 server, for pods as for this machine.
pub fn s3_url() -> String {
    format!("http://{NODE}:{S3_PORT}")
}
