//! The program as a process.

use std::ffi::OsStr;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use etcd_client::Client;
use mainstay_testkit::EtcdRelease;
use mainstay_testkit::ports::free_ports;

/// A running `mainstay-server`. Dropping it kills it.
pub(crate) struct ServerProcess {
    arguments: Vec<String>,
    child: Child,
    url: String,
    metrics_url: String,
}

impl ServerProcess {
    /// Starts it on free ports and waits until it answers.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let server = Self::launch(arguments, "http");
        server.wait_until_healthy().await;
        server
    }

    /// Starts it on free ports.
    pub(crate) fn launch(arguments: &[&str], scheme: &str) -> Self {
        let [port, metrics_port] = free_ports();
        let mut all: Vec<String> = vec!["serve".to_owned()];
        all.extend(["--listen".to_owned(), format!("127.0.0.1:{port}")]);
        all.extend([
            "--metrics-listen".to_owned(),
            format!("127.0.0.1:{metrics_port}"),
        ]);
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Self {
            child: spawn(&all),
            arguments: all,
            url: format!("{scheme}://127.0.0.1:{port}"),
            metrics_url: format!("http://127.0.0.1:{metrics_port}"),
        }
    }

    /// Starts it again with the same arguments.
    pub(crate) async fn restart(&mut self) {
        self.child = spawn(&self.arguments);
        self.wait_until_healthy().await;
    }

    pub(crate) async fn wait_until_healthy(&self) {
        let http = reqwest::Client::new();
        for _ in 0..600 {
            let answer = http
                .get(format!("{}/healthz", self.metrics_url))
                .send()
                .await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!(
            "mainstay-server did not become healthy: {:?}",
            self.arguments
        );
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect([&self.url], None)
            .await
            .expect("connect to mainstay-server")
    }

    pub(crate) async fn metrics(&self) -> String {
        let url = format!("{}/metrics", self.metrics_url);
        let answer = reqwest::get(url).await.expect("read the metrics");
        answer.text().await.expect("metrics are text")
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill mainstay-server");
        self.child.wait().expect("wait for mainstay-server");
    }

    /// Ends it with SIGTERM; returns true when it reports success.
    pub(crate) fn terminate(&mut self) -> bool {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let pid = pid.expect("a process has an ID");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal");
        self.child
            .wait()
            .expect("wait for mainstay-server")
            .success()
    }

    /// Runs etcdctl against it.
    pub(crate) fn try_etcdctl<A: AsRef<OsStr>>(
        &self,
        release: EtcdRelease,
        arguments: impl IntoIterator<Item = A>,
    ) -> Output {
        Command::new(release.directory().join("etcdctl"))
            .env_clear()
            .env("ETCDCTL_API", "3")
            // Without a scheme: etcdctl 3.4 would send it in `:authority`.
            .env("ETCDCTL_ENDPOINTS", self.url.trim_start_matches("http://"))
            .args(arguments)
            .output()
            .expect("run etcdctl")
    }

    /// Runs etcdctl, which must succeed, and returns its output.
    pub(crate) fn etcdctl<A: AsRef<OsStr>>(
        &self,
        release: EtcdRelease,
        arguments: impl IntoIterator<Item = A>,
    ) -> String {
        let run = self.try_etcdctl(release, arguments);
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{errors}");
        String::from_utf8(run.stdout).expect("etcdctl prints text")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(arguments: &[String]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_mainstay-server"))
        .args(arguments)
        .stdin(Stdio::null())
        .spawn()
        .expect("start mainstay-server")
}
