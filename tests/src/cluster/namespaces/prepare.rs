//! Prepares the namespaces of a cluster for a node, from inside.
//!
//! The programs of a node write to fixed directories and change kernel settings. Here those directories are empty tmpfs
//! mounts, and the settings are files that already have the required values.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::super::home::ClusterHome;
use super::super::programs::Programs;
use super::super::run::{RunError, run, run_line};

/// Directories that are replaced by an empty tmpfs, with its mode.
const HIDDEN_DIRS: [(&str, &str); 3] = [("/run", "0755"), ("/tmp", "1777"), ("/var", "0755")];

/// Machine-wide settings that the kubelet requires.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Why the namespaces could not be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// A file or directory could not be created.
    #[error("failed to prepare {}", path.display())]
    File {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// A mount failed, or the loopback device could not be enabled.
    #[error("failed to prepare the namespaces of the cluster")]
    Run(#[source] RunError),
}

fn file_error(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> PrepareError {
    let path = path.as_ref().to_owned();
    move |source| PrepareError::File { path, source }
}

/// Mounts the directories and settings, and configures the network.
pub(super) async fn prepare_namespaces(
    home: &ClusterHome,
    programs: &Programs,
) -> Result<(), PrepareError> {
    hide_host_dirs(&open_kept_dirs(home, programs)?).await?;
    for (number, (setting, value)) in KERNEL_SETTINGS.into_iter().enumerate() {
        let stand_in = home.file(&format!("kernel/{number}"));
        fs::write(&stand_in, format!("{value}\n")).map_err(file_error(&stand_in))?;
        let setting = Path::new("/proc/sys").join(setting);
        if setting.exists() {
            bind_mount(&stand_in, &setting).await?;
        }
    }
    run_line("ip link set lo up")
        .await
        .map_err(PrepareError::Run)?;
    // Affects only this network namespace: pods communicate through the node.
    let forward = "/proc/sys/net/ipv4/ip_forward";
    fs::write(forward, "1").map_err(file_error(forward))
}

/// Opens the needed directories that a tmpfs will hide, so that they can be mounted back.
fn open_kept_dirs(
    home: &ClusterHome,
    programs: &Programs,
) -> Result<Vec<(File, PathBuf)>, PrepareError> {
    let mut needed = programs.directories();
    needed.push(home.path().to_owned());
    needed.retain(|path| {
        HIDDEN_DIRS
            .iter()
            .any(|(hidden, _)| path.starts_with(hidden))
    });
    let open = |path: PathBuf| Ok((File::open(&path).map_err(file_error(&path))?, path));
    needed.into_iter().map(open).collect()
}

async fn hide_host_dirs(kept: &[(File, PathBuf)]) -> Result<(), PrepareError> {
    for (place, mode) in HIDDEN_DIRS {
        let options = format!("mode={mode}");
        let arguments = ["-t", "tmpfs", "-o", &options, "mainstay", place];
        run("mount", &arguments).await.map_err(PrepareError::Run)?;
    }
    symlink("/run", "/var/run").map_err(file_error("/var/run"))?;
    for place in ["/var/lib", "/var/log", "/var/tmp"] {
        fs::create_dir(place).map_err(file_error(place))?;
    }
    for (held, path) in kept {
        fs::create_dir_all(path).map_err(file_error(path))?;
        let held = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
        bind_mount(Path::new(&held), path).await?;
    }
    Ok(())
}

/// Without `--no-canonicalize`, `mount` resolves the link of the open file and mounts the directory that hides it.
async fn bind_mount(from: &Path, to: &Path) -> Result<(), PrepareError> {
    let arguments: [&Path; 4] = ["--no-canonicalize".as_ref(), "--bind".as_ref(), from, to];
    run("mount", &arguments).await.map_err(PrepareError::Run)?;
    Ok(())
}
