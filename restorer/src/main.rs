//! See [`mainstay_restorer::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    mainstay_restorer::cli::main()
}
