//! See [`steward_sidecar::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    steward_heaps::begin_with_one();
    steward_sidecar::run::main()
}
