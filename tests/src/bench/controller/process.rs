//! Runs the controller as a user does.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use mainstay_testkit::etcd::free_url;
use mainstay_testkit::kube::ApiServer;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::sleep;

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_mins(30);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A running controller. Dropping it kills the process.
pub(super) struct ControllerProcess {
    child: Child,
    temp_dir: TempDir,
    url: String,
    http: reqwest::Client,
    pub(super) started: Instant,
}

impl ControllerProcess {
    pub(super) fn start(program: &Path, server: &ApiServer) -> anyhow::Result<Self> {
        let temp_dir =
            TempDir::with_prefix("controller-").context("failed to create a directory")?;
        let url = free_url();
        let port = url.rsplit(':').next().unwrap_or_default();
        let log =
            File::create(temp_dir.path().join("log")).context("failed to create the log file")?;
        let child = Command::new(program)
            .env_clear()
            .arg(format!("--kubeconfig={}", server.kubeconfig().display()))
            .arg("--metrics-bind-address=127.0.0.1")
            .arg(format!("--metrics-port={port}"))
            .arg("--enable-etcd-spec-auto-reconcile")
            .stdin(Stdio::null())
            .stdout(
                log.try_clone()
                    .context("failed to duplicate the log file")?,
            )
            .stderr(log)
            .spawn()
            .with_context(|| format!("failed to start {}", program.display()))?;
        Ok(Self {
            child,
            temp_dir,
            url,
            http: reqwest::Client::new(),
            started: Instant::now(),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails with the end of the log if the controller has exited.
    pub(super) fn expect_running(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self
            .child
            .try_wait()
            .context("failed to check the controller process")?
        {
            let log = std::fs::read_to_string(self.temp_dir.path().join("log")).unwrap_or_default();
            let end: Vec<&str> = log.lines().rev().take(20).collect();
            bail!("controller exited with {status}; end of its log: {end:#?}");
        }
        Ok(())
    }

    /// Waits for a number of reconciles without a change. Returns the time since the start.
    pub(super) async fn wait_for_reconciles(&mut self, passes: usize) -> anyhow::Result<Duration> {
        loop {
            self.expect_running()?;
            if self
                .read_settled_reconciles()
                .await
                .is_some_and(|settled| settled >= passes)
            {
                return Ok(self.started.elapsed());
            }
            ensure!(
                self.started.elapsed() < TIMEOUT,
                "controller does not become idle"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Reconciles without a change; `None` while the controller does not respond.
    async fn read_settled_reconciles(&self) -> Option<usize> {
        let answer = self.http.get(format!("{}/metrics", self.url)).send().await;
        let text = answer.ok()?.text().await.ok()?;
        let name = r#"mainstay_controller_reconciles_total{outcome="settled"} "#;
        text.lines()
            .find_map(|line| line.strip_prefix(name))?
            .parse()
            .ok()
    }

    /// Stops the controller with SIGTERM.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        self.expect_running()?;
        let id = Pid::from_child(&self.child);
        kill_process(id, Signal::TERM).context("failed to send SIGTERM to the controller")?;
        let status = self
            .child
            .wait()
            .context("failed to wait for the controller")?;
        ensure!(status.success(), "controller exited with {status}");
        Ok(())
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
