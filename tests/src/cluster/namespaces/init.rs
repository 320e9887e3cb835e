//! Process 1 of a cluster: keeps every component running and reaps orphaned processes.
//!
//! A component that exits is restarted after a pause, so none has to wait for another. While its `hold` file exists, a
//! component is kept stopped; tests use this to stop one.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tokio::time::{Instant, sleep};

use super::prepare::{PrepareError, prepare_namespaces};
use crate::cluster::components::{ClusterComponent, LaunchCommand};
use crate::cluster::home::ClusterHome;
use crate::cluster::programs::{Programs, ProgramsError};

/// Pause before a restart.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// `cluster up` creates the link within a moment. If it was killed before, it may not have recorded this process either, so
/// process 1 must exit by itself.
const LINK_DEADLINE: Duration = Duration::from_mins(5);
/// Interval of checks for `hold` files.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why process 1 exits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// Programs are missing.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// The namespaces could not be prepared.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The file that reports readiness could not be written.
    #[error("failed to write the file that reports readiness")]
    WriteSignal(#[source] io::Error),
    /// `cluster up` has ended before it created the link.
    #[error("no network link within {LINK_DEADLINE:?}")]
    Unlinked,
    /// A component could not be started.
    #[error("failed to start {component}")]
    Start {
        /// The component.
        component: &'static str,
        /// Underlying error.
        source: io::Error,
    },
    /// Waiting for child processes failed.
    #[error("failed to wait for child processes")]
    Wait(#[source] io::Error),
    /// A component could not be stopped.
    #[error("failed to stop {component}")]
    End {
        /// The component.
        component: &'static str,
        /// Underlying error.
        source: io::Error,
    },
}

/// Runs until it is killed.
pub async fn run_init(home: &ClusterHome) -> Result<Infallible, InitError> {
    let programs = Programs::find()?;
    prepare_namespaces(home, &programs).await?;
    File::create(home.prepared_file()).map_err(InitError::WriteSignal)?;
    let deadline = Instant::now() + LINK_DEADLINE;
    while !home.linked_file().exists() {
        if Instant::now() > deadline {
            return Err(InitError::Unlinked);
        }
        sleep(POLL_INTERVAL).await;
    }
    let path = programs.search_path();
    let keep = |component: ClusterComponent| SupervisedComponent {
        component,
        launch: component.launch_command(home, &programs),
        process: None,
        not_before: Instant::now(),
    };
    let mut all = ClusterComponent::ALL.map(keep);
    loop {
        while let Some(ended) = reap_child()? {
            let ended = all.iter_mut().find(|kept| kept.process == Some(ended));
            if let Some(kept) = ended {
                kept.mark_ended(home);
            }
        }
        for kept in &mut all {
            kept.reconcile(home, &path)?;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Reaps a process that has ended, a component or an orphan.
fn reap_child() -> Result<Option<Pid>, InitError> {
    match wait(WaitOptions::NOHANG) {
        Ok(ended) => Ok(ended.map(|(process, _)| process)),
        Err(Errno::CHILD) => Ok(None),
        Err(error) => Err(InitError::Wait(error.into())),
    }
}

/// A component and its process.
struct SupervisedComponent {
    component: ClusterComponent,
    launch: LaunchCommand,
    process: Option<Pid>,
    not_before: Instant,
}

impl SupervisedComponent {
    fn mark_ended(&mut self, home: &ClusterHome) {
        self.process = None;
        self.not_before = Instant::now() + RESTART_DELAY;
        // The file is missing if the component never started.
        fs::remove_file(home.running_file(self.component)).ok();
    }

    /// Takes at most one step towards the desired state.
    fn reconcile(&mut self, home: &ClusterHome, path: &str) -> Result<(), InitError> {
        let component = self.component.name();
        let is_held = home.hold_file(self.component).exists();
        match self.process {
            Some(process) if is_held => match kill_process(process, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => Ok(()),
                Err(error) => Err(InitError::End {
                    component,
                    source: error.into(),
                }),
            },
            None if !is_held && Instant::now() >= self.not_before => {
                let started = self.start(home, path);
                let process = started.map_err(|source| InitError::Start { component, source })?;
                self.process = Some(process);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn start(&self, home: &ClusterHome, path: &str) -> io::Result<Pid> {
        let log = home.log_file(self.component);
        let mut log = File::options().create(true).append(true).open(log)?;
        writeln!(log, "--- starting {}", self.component.name())?;
        let child = Command::new(&self.launch.program)
            .args(&self.launch.flags)
            .env_clear()
            .env("PATH", path)
            .env("HOME", home.path())
            .current_dir(home.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| io::Error::other("process has no ID"))?;
        fs::write(
            home.running_file(self.component),
            format!("{}\n", id.as_raw_nonzero()),
        )?;
        Ok(id)
    }
}
