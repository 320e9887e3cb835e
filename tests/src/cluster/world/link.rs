//! The only way between the machine and a world: a pair of devices, and routes on the machine's side.
//!
//! The world has no other route, so nothing in it reaches beyond the machine. When the world ends the
//! kernel removes its device, the other one with it, and the routes that name that one.

use std::path::Path;

use super::super::addresses::{LINK_BITS, HOST, HOST_DEVICE, NODE, PODS, SERVICES};
use super::super::record::ProcessRecord;
use super::super::run::{RunError, run_line};

/// The node's device.
const NODE_DEVICE: &str = "eth0";

/// Lays it into the world of this first process.
pub(crate) async fn create_link(first: &ProcessRecord) -> Result<(), RunError> {
    for line in link_commands(first.pid()) {
        run_line(&line).await?;
    }
    Ok(())
}

/// Whether the machine has its end of a link.
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
    fn every_change_of_the_machine_names_the_device_that_goes_with_the_world() {
        for line in link_commands(42) {
            let inside = line.starts_with("nsenter --target 42 --net -- ");
            assert!(inside || line.contains(HOST_DEVICE), "{line}");
        }
    }
}
