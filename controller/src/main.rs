//! See [`steward_controller::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    steward_heaps::begin_with_one();
    steward_controller::run::main()
}
