//! Runs the benchmarks, see [`mainstay_tests::bench`].

use clap::Parser;
use mainstay_tests::bench::{self, BenchArgs};

fn main() -> anyhow::Result<()> {
    bench::main(&BenchArgs::parse())
}
