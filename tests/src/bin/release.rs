//! `release`: packs a release from built programs.
//!
//! Called by `make release`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use mainstay_testkit::paths::cache_dir;
use mainstay_tests::release::{ReleaseParts, ReleaseSource, pack};

/// Packs a release: programs, images, chart, checksums, provenance
#[derive(Parser)]
struct ReleaseArgs {
    /// Directory of the built programs, with their symbols
    #[arg(long)]
    programs: PathBuf,
    /// Directory of the SBOMs [default: the release has no SBOMs]
    #[arg(long)]
    sboms: Option<PathBuf>,
    /// Directory of the artifacts; replaced if it exists
    #[arg(long)]
    output: PathBuf,
    /// Root directory of the sources
    #[arg(long, default_value = ".")]
    source: PathBuf,
    /// Version of the programs
    #[arg(long)]
    version: String,
    /// Commit of the sources
    #[arg(long)]
    commit: String,
    /// Time of the commit in seconds since 1970
    #[arg(long, env = "SOURCE_DATE_EPOCH")]
    epoch: u64,
    /// Output of `rustc --version --verbose`
    #[arg(long)]
    toolchain: String,
    /// The program Helm [default: the one in the cache]
    #[arg(long, env = "MAINSTAY_HELM")]
    helm: Option<PathBuf>,
}

impl ReleaseArgs {
    async fn run(self) -> anyhow::Result<()> {
        let Self {
            programs,
            sboms,
            output,
            source,
            version,
            commit,
            epoch,
            toolchain,
            helm,
        } = self;
        let checkout = source.canonicalize();
        let source = ReleaseSource {
            version,
            commit,
            epoch,
            checkout: checkout.with_context(|| format!("failed to open {}", source.display()))?,
            toolchain,
        };
        let helm = helm.unwrap_or_else(|| cache_dir().unwrap_or_default().join("helm/4/helm"));
        let parts = ReleaseParts {
            programs,
            sboms,
            helm,
            output,
        };
        pack(&source, &parts).await?;
        report(&parts.output)
    }
}

fn report(output: &Path) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{}", output.display()).context("failed to print the directory")
}

#[tokio::main]
async fn main() -> ExitCode {
    match ReleaseArgs::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(io::stderr(), "release: failed: {error:#}").ok(); // stderr may be closed
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        ReleaseArgs::command().debug_assert();
    }
}
