//! The images of every test cluster.

use std::fs;
use std::path::Path;

use super::super::programs::{HOST_PATH, Programs, ProgramsError};
use super::super::run::{RunError, run};
use super::archive::{Image, ImageError};

/// The pause image, which holds the namespaces of a pod.
pub const PAUSE_IMAGE: &str = "pause:1";
/// A shell and a few programs, for Jobs of tests.
pub const TOOLBOX_IMAGE: &str = "toolbox:1";
/// The etcd image, tagged with the version.
pub const ETCD_IMAGE: &str = "etcd";

/// The tag of this project's programs.
pub const DEV_TAG: &str = "dev";

/// Programs in the toolbox, in addition to `/bin/sh`.
const TOOLBOX_PROGRAMS: [&str; 8] = ["cat", "dd", "df", "id", "ls", "sleep", "sync", "getent"];
/// The CA certificates of the machine.
pub const CA_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The programs of this project, one image each.
pub const OWN_PROGRAMS: [&str; 3] = [
    "mainstay-controller",
    "mainstay-restorer",
    "mainstay-sidecar",
];

/// Why the images could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// An image could not be created.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// etcd could not be run.
    #[error("failed to run etcd --version")]
    Version(#[source] RunError),
    /// The output of etcd has no version.
    #[error("no version in the output of etcd --version: {answer}")]
    NoVersion {
        /// The output.
        answer: String,
    },
    /// A tool is missing on this machine.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
}

/// The images pause, toolbox and etcd.
pub(crate) async fn build_base_images(programs: &Programs) -> Result<Vec<Image>, CatalogueError> {
    let pause = Image::new(PAUSE_IMAGE)
        .program(Path::new("/bin/sleep"), "/bin/sleep")
        .await?;
    let mut images = vec![
        pause.entrypoint(&["/bin/sleep", "infinity"]),
        build_toolbox().await?,
    ];
    for (directory, version) in programs
        .etcd_dirs()
        .zip(read_etcd_versions(programs).await?)
    {
        let mut image = Image::new(&format!("{ETCD_IMAGE}:{version}")).scratch("/tmp");
        for program in ["etcd", "etcdctl"] {
            image = image
                .program(&directory.join(program), &format!("/bin/{program}"))
                .await?;
        }
        images.push(image.entrypoint(&["/bin/etcd"]));
    }
    Ok(images)
}

async fn build_toolbox() -> Result<Image, CatalogueError> {
    let mut image = Image::new(TOOLBOX_IMAGE)
        .scratch("/tmp")
        .program(Path::new("/bin/sh"), "/bin/sh")
        .await?;
    for tool in TOOLBOX_PROGRAMS {
        let places = HOST_PATH
            .split(':')
            .map(|place| Path::new(place).join(tool));
        let found = places.into_iter().find(|path| path.is_file());
        let found = found.ok_or(ProgramsError::MissingOnHost { program: tool })?;
        image = image.program(&found, &format!("/bin/{tool}")).await?;
    }
    Ok(image.entrypoint(&["/bin/sh"]))
}

/// The versions of etcd, oldest first; they are the tags of the etcd image.
pub async fn read_etcd_versions(programs: &Programs) -> Result<Vec<String>, CatalogueError> {
    let mut versions = Vec::new();
    for directory in programs.etcd_dirs() {
        let etcd = directory.join("etcd").display().to_string();
        let answer = run(&etcd, &["--version"])
            .await
            .map_err(CatalogueError::Version)?;
        let version = answer
            .lines()
            .find_map(|line| line.strip_prefix("etcd Version: "));
        let version = version.map(str::trim).map(str::to_owned);
        versions.push(version.ok_or(CatalogueError::NoVersion { answer })?);
    }
    Ok(versions)
}

/// Images `<program>:dev` of this project's programs found in a directory, with the CA certificates of the machine.
pub async fn build_program_images(directory: &Path) -> Result<Vec<Image>, CatalogueError> {
    let mut images = Vec::new();
    for name in OWN_PROGRAMS {
        let program = directory.join(name);
        if program.is_file() {
            images.push(build_program_image(name, DEV_TAG, &program).await?);
        }
    }
    Ok(images)
}

/// The image of one of this project's programs, with the CA certificates of the machine.
pub async fn build_program_image(
    name: &str,
    tag: &str,
    program: &Path,
) -> Result<Image, CatalogueError> {
    let place = format!("/bin/{name}");
    let image = Image::new(&format!("{name}:{tag}"))
        .scratch("/tmp")
        .text(CA_BUNDLE, fs::read(CA_BUNDLE).unwrap_or_default());
    Ok(image.program(program, &place).await?.entrypoint(&[&place]))
}
