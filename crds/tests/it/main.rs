//! Tests of the CRDs as an API server uses them: schemas, defaults, rules, generated files.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test that cannot continue must fail; values written in place read better than references"
)]

mod admission;
mod generated;
mod limits;
mod live;
mod roundtrip;
mod rules;
mod samples;
mod structure;
mod upstream;
