//! See [`mainstay_server::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    mainstay_server::run::main()
}
