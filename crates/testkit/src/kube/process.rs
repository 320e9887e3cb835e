//! One program of Kubernetes that runs until its owner lets go of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use super::binaries::find_program;

/// A running program. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct KubeProcess {
    child: Child,
    log_path: PathBuf,
}

impl KubeProcess {
    /// Starts a program; what it says goes behind what it said before in `<home>/<name>.log`.
    pub(super) fn start(name: &str, flags: &[String], home: &Path) -> Self {
        let log = log_path(name, home);
        let file = File::options().create(true).append(true).open(&log);
        let file = file.unwrap_or_else(|error| panic!("open {}: {error}", log.display()));
        let child = Command::new(find_program(name))
            .env_clear()
            .args(flags)
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("share a log"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self { child, log_path: log }
    }

    /// How it ended, if it has.
    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("ask for the state of a child")
    }

    /// All it wrote, over all its starts.
    pub(super) fn read_log(&self) -> String {
        read_log(&self.log_path)
    }
}

impl Drop for KubeProcess {
    fn drop(&mut self) {
        // Fails only when the process is gone already, which is what was wanted.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn log_path(name: &str, home: &Path) -> PathBuf {
    home.join(format!("{name}.log"))
}

fn read_log(path: &Path) -> String {
    fs::read(path)
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .unwrap_or_default()
}
