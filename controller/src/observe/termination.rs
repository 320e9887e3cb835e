//! Describes a program that terminated without a verdict: the signal, its progress and its last log line.
//!
//! A program can be killed before it writes a termination message. The kubelet then puts the end of its log there, which
//! contains the last progress line.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use mainstay_telemetry::{ProgressSample, format_bytes};
use serde::Deserialize;

/// Characters to keep of the last log line.
const MAX_LINE_CHARS: usize = 300;
/// Exit code of a killed program: this value plus the signal.
const SIGNAL_EXIT_BASE: i32 = 128;

/// The terminated state of the first terminated container.
pub(super) fn find_terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let mut containers = pod.status.as_ref()?.container_statuses.iter().flatten();
    containers.find_map(|container| container.state.as_ref()?.terminated.as_ref())
}

/// The termination message, if it is not empty.
pub(super) fn termination_message(terminated: &ContainerStateTerminated) -> Option<&str> {
    terminated
        .message
        .as_deref()
        .filter(|text| !text.is_empty())
}

/// Description of a program that left no verdict; `None` when nothing is known.
pub(super) fn describe_termination(terminated: &ContainerStateTerminated) -> Option<String> {
    let log = termination_message(terminated).unwrap_or_default();
    let parts = [
        describe_kill(terminated),
        describe_progress(log),
        describe_last_line(log),
    ];
    let known: Vec<String> = parts.into_iter().flatten().collect();
    Some(known.join("; ")).filter(|description| !description.is_empty())
}

/// The signal that killed the program; `None` when it exited by itself.
fn describe_kill(terminated: &ContainerStateTerminated) -> Option<String> {
    if terminated.reason.as_deref() == Some("OOMKilled") {
        return Some("killed: memory limit exceeded (OOMKilled)".into());
    }
    // Container runtimes report the signal in the exit code and leave the field empty.
    let signal = terminated.signal.filter(|signal| *signal > 0);
    let coded = || terminated.exit_code.checked_sub(SIGNAL_EXIT_BASE);
    let signal = signal.or_else(|| coded().filter(|signal| *signal > 0));
    signal.map(|signal| format!("killed by signal {signal}"))
}

fn describe_progress(log: &str) -> Option<String> {
    let sample = ProgressSample::latest(log)?;
    let percent = sample.percent()?;
    let [done, total] = [sample.done_bytes, sample.total_bytes].map(format_bytes);
    Some(format!("progress {percent} %, {done} of {total}"))
}

/// A log line of our programs.
#[derive(Deserialize)]
struct LogLine {
    message: String,
    #[serde(default)]
    error: Option<String>,
}

/// The last log line, unless it is a progress line.
fn describe_last_line(log: &str) -> Option<String> {
    let line = log.trim_end().lines().next_back()?;
    if ProgressSample::latest(line).is_some() {
        return None;
    }
    let text = match serde_json::from_str(line) {
        Ok(LogLine { message, error }) => [Some(message), error].into_iter().flatten().collect(),
        Err(_) => vec![line.to_owned()],
    };
    let text: String = text.join(": ").chars().take(MAX_LINE_CHARS).collect();
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRESS_LINE: &str =
        r#"{"level":"INFO","message":"working","job":"restore","bytes":86,"total_bytes":200}"#;

    fn describe(reason: &str, exit_code: i32, message: &str) -> Option<String> {
        describe_termination(&ContainerStateTerminated {
            reason: Some(reason.into()),
            exit_code,
            message: Some(message.into()),
            ..ContainerStateTerminated::default()
        })
    }

    #[test]
    fn oom_killed_program_is_reported_with_its_progress() {
        assert_eq!(
            describe("OOMKilled", 137, PROGRESS_LINE).unwrap(),
            "killed: memory limit exceeded (OOMKilled); progress 43 %, 86 B of 200 B"
        );
        assert_eq!(
            describe("OOMKilled", 137, "").unwrap(),
            "killed: memory limit exceeded (OOMKilled)"
        );
    }

    #[test]
    fn signal_is_distinguished_from_an_error_exit() {
        assert_eq!(describe("Error", 137, "").unwrap(), "killed by signal 9");
        assert_eq!(
            describe("Error", 1, "panic: full\n").unwrap(),
            "panic: full"
        );
        assert_eq!(describe("Error", 1, ""), None);
        assert_eq!(describe("Error", i32::MIN, ""), None, "no overflow");
    }

    #[test]
    fn last_log_line_is_reported_as_text() {
        let warning = r#"{"level":"WARN","message":"no answer","error":"timed out","attempt":3}"#;
        assert_eq!(
            describe("Error", 1, warning).unwrap(),
            "no answer: timed out"
        );
        let log = format!("{PROGRESS_LINE}\n{warning}\n");
        assert_eq!(
            describe("Error", 137, &log).unwrap(),
            "killed by signal 9; progress 43 %, 86 B of 200 B; no answer: timed out"
        );
    }

    #[test]
    fn overlong_line_is_truncated() {
        let line = "ö".repeat(10_000);
        assert_eq!(
            describe("Error", 1, &line).unwrap().chars().count(),
            MAX_LINE_CHARS
        );
    }
}
