//! Measures the restorer against a real etcd, see [`steward_tests::bench`].

use clap::Parser;
use steward_tests::bench::{self, Args};

fn main() -> anyhow::Result<()> {
    bench::main(&Args::parse())
}
