//! See [`steward_sidecar::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    steward_sidecar::run::main()
}
