//! See [`mainstay_controller::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    mainstay_telemetry::reexec_with_one_arena();
    mainstay_controller::run::main()
}
