//! Turns `Etcd` resources into healthy etcd clusters, and keeps them so.
#![forbid(unsafe_code)]
pub mod cadence;
pub mod decide;
pub mod observe;
pub mod quantity;
pub mod validate;
