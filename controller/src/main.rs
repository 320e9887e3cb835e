//! See [`mainstay_controller::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    mainstay_heaps::begin_with_one();
    mainstay_controller::run::main()
}
