//! Identifies the process that holds the namespaces of a cluster.
//!
//! Process IDs are reused. A record therefore contains the start time of the process and the boot ID of the machine; a
//! process that differs in either is an unrelated one, which must not be killed.

use std::fs;
use std::io;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// Identity of one process of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    process: i32,
    started_ticks: u64,
    boot: String,
}

impl ProcessRecord {
    /// The record of a running process; `None` if it has ended.
    pub(crate) fn from_pid(process: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(Self {
            process,
            started_ticks: started_ticks(&stat)?,
            boot: boot.trim().to_owned(),
        })
    }

    /// Whether this process still runs.
    pub(crate) fn is_running(&self) -> bool {
        Self::from_pid(self.process).as_ref() == Some(self)
    }

    /// Its only child, process 1 of the namespaces.
    pub(crate) fn child(&self) -> Option<Self> {
        let id = self.process;
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
        let child = children.split_whitespace().next()?.parse().ok()?;
        self.is_running().then(|| Self::from_pid(child))?
    }

    /// The process ID.
    pub(crate) fn pid(&self) -> i32 {
        self.process
    }

    /// Kills the process. Succeeds if it has already ended.
    pub(crate) fn kill(&self) -> io::Result<()> {
        if !self.is_running() {
            return Ok(());
        }
        let Some(process) = Pid::from_raw(self.process) else {
            return Ok(());
        };
        match kill_process(process, Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            ended => Ok(ended?),
        }
    }
}

/// The 22nd field of `/proc/<id>/stat`. The second one is the program's name in parentheses, which may contain any
/// character. A zombie (`Z`) does not run.
fn started_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (state != "Z").then_some(started)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const STAT: &str = "77 (a) S (b) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 4242 1000 10";

    #[test]
    fn start_time_is_parsed_after_any_process_name() {
        assert_eq!(started_ticks(STAT), Some(4242));
    }

    #[test]
    fn zombie_process_is_not_running() {
        assert_eq!(started_ticks(&STAT.replace(") S 1", ") Z 1")), None);
    }

    #[test]
    fn process_with_a_reused_pid_is_not_ours() {
        let id = i32::try_from(std::process::id()).unwrap();
        let ours = ProcessRecord::from_pid(id).unwrap();
        assert!(ours.is_running());
        let older = ProcessRecord {
            started_ticks: ours.started_ticks - 1,
            ..ours.clone()
        };
        assert!(!older.is_running());
        let earlier_boot = ProcessRecord {
            boot: "another".to_owned(),
            ..ours
        };
        assert!(!earlier_boot.is_running());
        earlier_boot.kill().unwrap(); // must not kill: the record has the ID of this test
    }

    #[test]
    fn killed_process_is_not_running() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let record = ProcessRecord::from_pid(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(record.is_running());
        record.kill().unwrap();
        child.wait().unwrap();
        assert!(!record.is_running());
    }
}
