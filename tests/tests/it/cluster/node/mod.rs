//! Tests that need access to the node: they stop components, drop packets, damage volumes and kill processes. They run
//! only on the cluster of this machine; `cluster filter` skips them on an external one.

mod damage;
mod full_volume;
mod partition;
mod shared_outages;
mod soak;
mod store_outage;
mod upload;
mod volumes;
