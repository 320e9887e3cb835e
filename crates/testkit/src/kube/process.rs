//! One Kubernetes program that runs until its owner is dropped.

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
    /// Starts a program; its output is appended to `<home>/<name>.log`.
    pub(super) fn start(name: &str, flags: &[String], home: &Path) -> Self {
        let log = log_path(name, home);
        let file = File::options().create(true).append(true).open(&log);
        let file = file.unwrap_or_else(|error| panic!("open {}: {error}", log.display()));
        let child = Command::new(find_program(name))
            .env_clear()
            .args(flags)
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("clone the log file"))
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self {
            child,
            log_path: log,
        }
    }

    /// Exit status, if it has exited.
    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .expect("read the state of a child process")
    }

    /// Log of all starts.
    pub(super) fn read_log(&self) -> String {
        read_log(&self.log_path)
    }
}

impl Drop for KubeProcess {
    fn drop(&mut self) {
        // Fails only if the process has already exited.
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
