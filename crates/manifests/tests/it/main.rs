//! Tests of the rendered objects as consumers, the kubelet and our own programs see them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot continue must fail"
)]

mod budget;
mod chart;
mod flags;
mod golden;
mod live;
mod monitoring;
mod pods;
mod rbac;
mod rollout;
mod schemas;
mod selectors;
mod support;
