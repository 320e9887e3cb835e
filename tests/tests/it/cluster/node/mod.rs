//! Tests that need access to the node: they stop components, drop packets, damage volumes and kill processes. They run
//! only on the cluster of this machine; `cluster filter` skips them on an external one.

mod shared_outages;
mod partition;
mod damage;
mod full_volume;
mod store_outage;
mod soak;
mod upload;
mod volumes;
