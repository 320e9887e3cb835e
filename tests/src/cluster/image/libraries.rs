//! Finds the shared libraries of a program with `ldd`.

use std::path::{Path, PathBuf};

use super::super::run::{RunError, run};

/// Why the libraries of a program could not be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// `ldd` failed.
    #[error("failed to list the libraries of {}", program.display())]
    RunLdd {
        /// Name of the program.
        program: PathBuf,
        /// Underlying error.
        source: RunError,
    },
    /// A library is missing on this machine.
    #[error("{} needs {library}, which is not installed on this machine", program.display())]
    Missing {
        /// Name of the program.
        program: PathBuf,
        /// Name of the library.
        library: String,
    },
}

/// Paths of the libraries and the loader of a program; empty for a static one.
pub async fn list_libraries(program: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    match run("ldd", &[program]).await {
        Ok(answer) => parse_ldd(&answer).map_err(|library| LibraryError::Missing {
            program: program.to_owned(),
            library,
        }),
        Err(RunError::Failed { output, .. }) if output.contains("not a dynamic executable") => {
            Ok(Vec::new())
        }
        Err(source) => Err(LibraryError::RunLdd {
            program: program.to_owned(),
            source,
        }),
    }
}

/// Lines are `name => path (address)`, `path (address)` for the loader, or a bare name for the vDSO of the kernel.
/// The error is the name of a missing library.
fn parse_ldd(answer: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in answer.lines().map(str::trim) {
        let (name, place) = line.split_once(" => ").unwrap_or(("", line));
        if place.starts_with("not found") {
            return Err(name.to_owned());
        }
        let path = place.split_whitespace().next().unwrap_or_default();
        if path.starts_with('/') {
            found.push(PathBuf::from(path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "\tlinux-vdso.so.1 (0x00007ffd1)\n\
        \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)\n\
        \t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n";

    #[test]
    fn libraries_and_loader_are_listed_without_the_vdso() {
        let found = parse_ldd(ANSWER).unwrap();
        assert_eq!(
            found,
            [
                Path::new("/lib/x86_64-linux-gnu/libc.so.6"),
                Path::new("/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }

    #[test]
    fn missing_library_is_named() {
        assert_eq!(
            parse_ldd("\tlibz.so.1 => not found\n").unwrap_err(),
            "libz.so.1"
        );
    }

    #[test]
    fn static_program_needs_no_libraries() {
        assert!(parse_ldd("\tstatically linked\n").unwrap().is_empty());
    }
}
