//! See [`mainstay_sidecar::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    mainstay_heaps::begin_with_one();
    mainstay_sidecar::run::main()
}
