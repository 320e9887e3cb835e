//! See [`mainstay_sidecar::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    mainstay_telemetry::reexec_with_one_arena();
    mainstay_sidecar::run::main()
}
