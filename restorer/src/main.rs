//! See [`steward_restorer::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    steward_restorer::cli::main()
}
