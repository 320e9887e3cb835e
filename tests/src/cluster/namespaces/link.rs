//! The network link between the machine and the cluster: a veth pair, and routes on the machine.
//!
//! The cluster has no other route, so nothing in it reaches beyond the machine. When its network namespace ends, the
//! kernel removes both devices and the routes that use them.

use std::path::Path;

use super::super::addresses::{HOST, HOST_DEVICE, LINK_BITS, NODE, PODS, SERVICES};
use super::super::process_record::ProcessRecord;
use super::super::run::{RunError, run_line};

/// The device of the node.
const NODE_DEVICE: &str = "eth0";

/// Creates the link into the network namespace of process `first`.
pub(crate) async fn create_link(first: &ProcessRecord) -> Result<(), RunError> {
    for line in link_commands(first.pid()) {
        run_line(&line).await?;
    }
    Ok(())
}

/// Whether the machine's end of a link exists.
pub(crate) fn is_linked() -> bool {
    Path::new("/sys/class/net").join(HOST_DEVICE).exists()
}

fn link_commands(first: i32) -> [String; 7] {
    let inside = format!("nsenter --target {first} --net --");
    [
        format!("ip link add {HOST_DEVICE} type veth peer name {NODE_DEVICE} netns {first}"),
        format!("{inside} ip address add {NODE}/{LINK_BITS} dev {NODE_DEVICE}"),
        format!("{inside} ip link set {NODE_DEVICE} up"),
        format!("ip address add {HOST}/{LINK_BITS} dev {HOST_DEVICE}"),
        format!("ip link set {HOST_DEVICE} up"),
        format!("ip route add {PODS} via {NODE} dev {HOST_DEVICE}"),
        format!("ip route add {SERVICES} via {NODE} dev {HOST_DEVICE}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_network_changes_concern_only_the_cluster_device() {
        for line in link_commands(42) {
            let inside = line.starts_with("nsenter --target 42 --net -- ");
            assert!(inside || line.contains(HOST_DEVICE), "{line}");
        }
    }
}
