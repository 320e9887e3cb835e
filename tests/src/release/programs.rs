//! Separates a program from its symbols.

use std::path::{Path, PathBuf};

use super::error::ReleaseError;
use crate::cluster::run::run;

/// Writes `<name>`, the program without symbols, and `<name>.debug`, its symbols, which debuggers find by the link in the
/// program. Returns the path of the former.
pub(super) async fn split_symbols(
    program: &Path,
    output: &Path,
    name: &str,
) -> Result<PathBuf, ReleaseError> {
    let debug = output.join(format!("{name}.debug"));
    let stripped = output.join(name);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    let [from, debug_file, to] =
        [program, &debug, &stripped].map(|path| path.display().to_string());
    let steps: [Vec<&str>; 2] = [
        vec!["--only-keep-debug", &from, &debug_file],
        vec!["--strip-all", &link, &from, &to],
    ];
    for arguments in steps {
        let done = run("objcopy", &arguments).await;
        done.map_err(|source| ReleaseError::Symbols {
            program: program.to_owned(),
            source,
        })?;
    }
    Ok(stripped)
}
