//! The conformance suite, and what an engine promises beyond it.

mod export;
mod memory;
mod redb;
