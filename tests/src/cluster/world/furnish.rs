//! Makes a world fit to run a node in, from inside it.
//!
//! The programs of a node write to fixed places of the machine and change settings of the kernel. Here those
//! places are empty file systems in memory, and the settings are files that already say what is wanted.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::super::home::Home;
use super::super::programs::Programs;
use super::super::run::{RunError, run, run_line};

/// Places of the machine that are empty here, with the mode of the empty directory.
const HIDDEN: [(&str, &str); 3] = [("/run", "0755"), ("/tmp", "1777"), ("/var", "0755")];

/// Settings of the whole machine that a kubelet insists on.
const WANTED: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Why a world is not fit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FurnishError {
    /// A file or directory could not be made.
    #[error("prepare {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something could not be mounted, or the loopback device not be switched on.
    #[error("furnish the world")]
    Run(#[source] RunError),
}

fn file(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> FurnishError {
    let path = path.as_ref().to_owned();
    move |source| FurnishError::File { path, source }
}

/// Makes it so.
pub(super) async fn furnish(home: &Home, programs: &Programs) -> Result<(), FurnishError> {
    hide(&kept(home, programs)?).await?;
    for (number, (setting, value)) in WANTED.into_iter().enumerate() {
        let stand_in = home.file(&format!("kernel/{number}"));
        fs::write(&stand_in, format!("{value}\n")).map_err(file(&stand_in))?;
        let setting = Path::new("/proc/sys").join(setting);
        if setting.exists() {
            bind(&stand_in, &setting).await?;
        }
    }
    run_line("ip link set lo up")
        .await
        .map_err(FurnishError::Run)?;
    // Of this network only: pods speak through the node.
    let forward = "/proc/sys/net/ipv4/ip_forward";
    fs::write(forward, "1").map_err(file(forward))
}

/// Directories that are needed here although they lie in a hidden place, each held open.
fn kept(home: &Home, programs: &Programs) -> Result<Vec<(File, PathBuf)>, FurnishError> {
    let mut needed = programs.directories();
    needed.push(home.path().to_owned());
    needed.retain(|path| HIDDEN.iter().any(|(hidden, _)| path.starts_with(hidden)));
    let open = |path: PathBuf| Ok((File::open(&path).map_err(file(&path))?, path));
    needed.into_iter().map(open).collect()
}

async fn hide(kept: &[(File, PathBuf)]) -> Result<(), FurnishError> {
    for (place, mode) in HIDDEN {
        let options = format!("mode={mode}");
        let arguments = ["-t", "tmpfs", "-o", &options, "mainstay", place];
        run("mount", &arguments).await.map_err(FurnishError::Run)?;
    }
    symlink("/run", "/var/run").map_err(file("/var/run"))?;
    for place in ["/var/lib", "/var/log", "/var/tmp"] {
        fs::create_dir(place).map_err(file(place))?;
    }
    for (held, path) in kept {
        fs::create_dir_all(path).map_err(file(path))?;
        let held = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
        bind(Path::new(&held), path).await?;
    }
    Ok(())
}

/// `mount` would read the link of an open file and mount what hides it.
async fn bind(from: &Path, to: &Path) -> Result<(), FurnishError> {
    let arguments: [&Path; 4] = ["--no-canonicalize".as_ref(), "--bind".as_ref(), from, to];
    run("mount", &arguments).await.map_err(FurnishError::Run)?;
    Ok(())
}
