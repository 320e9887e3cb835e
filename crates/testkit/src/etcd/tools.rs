//! The command line tools of etcd, run against a server or its files.

use std::ffi::OsStr;
use std::process::{Command, Output};

use super::{EtcdRelease, EtcdServer};

impl EtcdRelease {
    /// Runs the tool for offline files, with commands such as `snapshot status`. Before 3.5 these commands
    /// belong to `etcdctl`, with the same arguments.
    pub fn run_etcdutl<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> Output {
        let name = if self == Self::V3_4 {
            "etcdctl"
        } else {
            "etcdutl"
        };
        let run = Command::new(self.program_path(name))
            .env_clear()
            .env("ETCDCTL_API", "3")
            .args(arguments)
            .output();
        run.unwrap_or_else(|error| panic!("run {name} {self}: {error}"))
    }

    /// As [`run_etcdutl`](Self::run_etcdutl), but panics on failure; returns standard output.
    pub fn etcdutl<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> String {
        expect_success("etcdutl", self.run_etcdutl(arguments))
    }
}

impl EtcdServer {
    /// Runs `etcdctl` against this server; returns standard output.
    ///
    /// # Panics
    /// If it fails, with its error output.
    pub fn etcdctl<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        let mut command = Command::new(self.version().program_path("etcdctl"));
        command
            .env_clear()
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", self.client_url());
        if let Some((name, password)) = self.user() {
            command.env("ETCDCTL_USER", format!("{name}:{password}"));
        }
        let run = command.args(arguments).output();
        expect_success(
            "etcdctl",
            run.unwrap_or_else(|error| panic!("run etcdctl: {error}")),
        )
    }

    /// Runs `etcdutl` of this server's version; returns standard output.
    ///
    /// # Panics
    /// If it fails, with its error output.
    pub fn etcdutl<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        self.version().etcdutl(arguments)
    }
}

fn expect_success(name: &str, output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name} exited with {}:\n{errors}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap_or_else(|_| panic!("output of {name} is not UTF-8"))
}
