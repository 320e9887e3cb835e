//! See [`steward_controller::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    steward_controller::run::main()
}
