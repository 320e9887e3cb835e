//! Generated messages and services.

/// Keys and events.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub(crate) mod mvccpb {
    tonic::include_proto!("mvccpb");
}

/// Requests, responses and services.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub(crate) mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}
