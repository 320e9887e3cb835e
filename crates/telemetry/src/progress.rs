//! Progress of a long job: a bar with rate and remaining time on a terminal, otherwise a periodic log line.
//!
//! With JSON logs the line is machine-readable: the controller reads the log of a Job and parses it with
//! [`ProgressSample::latest_for_job`]. Writer and parser are both here so that they cannot diverge.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

/// Interval of drawing the bar.
const DRAW_INTERVAL: Duration = Duration::from_millis(150);
/// Interval of log lines without a terminal: the interval at which the controller reads them.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// Message of every progress line. The parser matches it, also in logs of Jobs that run an older image.
const PROGRESS_MESSAGE: &str = "working";

/// Job name in the progress lines of a restore.
pub const RESTORE_JOB: &str = "restore";

/// Progress of a job at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressSample {
    /// Bytes to process; 0 while unknown.
    pub total_bytes: u64,
    /// Bytes processed so far.
    pub done_bytes: u64,
    /// Additional text, such as the revision reached.
    pub note: String,
}

impl ProgressSample {
    /// Returns the progress in whole percents, at most 100; `None` while the total is unknown.
    pub fn percent(&self) -> Option<u8> {
        let done = u128::from(self.done_bytes.min(self.total_bytes)) * 100;
        let percent = done.checked_div(u128::from(self.total_bytes))?;
        u8::try_from(percent).ok()
    }

    /// Returns the newest progress of a job from a JSON log. Other lines and truncated lines are skipped.
    pub fn latest_for_job(log: &str, job: &str) -> Option<Self> {
        parse_progress_lines(log)
            .find(|line| line.job == job)
            .map(Self::from)
    }

    /// Returns the newest progress of any job from a JSON log.
    pub fn latest(log: &str) -> Option<Self> {
        parse_progress_lines(log).next().map(Self::from)
    }
}

/// A progress line, as [`report_sample`] writes it.
#[derive(Debug, Deserialize)]
struct ProgressLogLine {
    message: String,
    job: String,
    bytes: u64,
    total_bytes: u64,
    #[serde(default)]
    note: String,
}

impl From<ProgressLogLine> for ProgressSample {
    fn from(line: ProgressLogLine) -> Self {
        Self {
            total_bytes: line.total_bytes,
            done_bytes: line.bytes,
            note: line.note,
        }
    }
}

/// Returns the progress lines of a log, newest first.
fn parse_progress_lines(log: &str) -> impl Iterator<Item = ProgressLogLine> {
    let lines = log.lines().rev();
    let parsed = lines.filter_map(|line| serde_json::from_str::<ProgressLogLine>(line).ok());
    parsed.filter(|line| line.message == PROGRESS_MESSAGE)
}

/// Shows the progress of a job until it is dropped.
#[derive(Debug)]
pub struct ProgressReporter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressReporter {
    /// Starts a thread that shows the progress which `sample` returns, under the given job name.
    pub fn start(name: &str, sample: impl Fn() -> ProgressSample + Send + 'static) -> Self {
        let (stop, stopped) = channel::<()>();
        let name = name.to_owned();
        let is_terminal = io::stderr().is_terminal();
        let thread = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || {
                let bar = is_terminal.then(|| new_bar(&name));
                let interval = if is_terminal {
                    DRAW_INTERVAL
                } else {
                    LOG_INTERVAL
                };
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    report_sample(&name, &sample(), bar.as_ref());
                }
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
            });
        // If the thread cannot be started, the job runs without showing progress.
        Self {
            stop: Some(stop),
            thread: thread.ok(),
        }
    }
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        // Dropping the sender ends the loop of the thread.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn new_bar(name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{prefix} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta} {msg}",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar())
    .progress_chars("=> ");
    ProgressBar::new(0)
        .with_style(style)
        .with_prefix(name.to_owned())
}

fn report_sample(name: &str, sample: &ProgressSample, bar: Option<&ProgressBar>) {
    if let Some(bar) = bar {
        bar.set_length(sample.total_bytes);
        bar.set_position(sample.done_bytes);
        bar.set_message(sample.note.clone());
        return;
    }
    // `ProgressLogLine` parses these fields: keep both in step.
    tracing::info!(
        job = name,
        percent = sample.percent(),
        bytes = sample.done_bytes,
        total_bytes = sample.total_bytes,
        note = sample.note,
        "{PROGRESS_MESSAGE}"
    );
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::EnvFilter;

    use super::*;
    use crate::logs;

    fn sample(done_bytes: u64, total_bytes: u64) -> ProgressSample {
        ProgressSample {
            total_bytes,
            done_bytes,
            note: "revision 7".into(),
        }
    }

    /// A log writer that keeps everything in memory.
    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Runs `work` and returns what it logged.
    fn capture_log(work: impl FnOnce()) -> String {
        let log = LogBuffer::default();
        let kept = log.clone();
        let subscriber = logs::json_subscriber(move || kept.clone(), EnvFilter::new("info"));
        tracing::subscriber::with_default(subscriber, work);
        String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn dropped_reporter_stops_its_thread() {
        let progress = ProgressReporter::start("test", ProgressSample::default);
        assert!(progress.thread.is_some());
        drop(progress);
    }

    #[test]
    fn progress_logged_by_a_job_is_parsed() {
        let log = capture_log(|| {
            report_sample(RESTORE_JOB, &sample(1, 200), None);
            report_sample(RESTORE_JOB, &sample(86, 200), None);
            report_sample("verify", &sample(200, 200), None);
            tracing::warn!("object unusable, using another chain");
        });
        assert_eq!(
            ProgressSample::latest_for_job(&log, RESTORE_JOB),
            Some(sample(86, 200))
        );
        assert_eq!(ProgressSample::latest_for_job(&log, "compact"), None);
        assert_eq!(ProgressSample::latest(&log), Some(sample(200, 200)));
        let (cut, _) = log.split_once(r#""bytes":86"#).unwrap();
        assert_eq!(
            ProgressSample::latest_for_job(cut, RESTORE_JOB),
            Some(sample(1, 200))
        );
    }

    #[test]
    fn log_in_another_format_has_no_progress() {
        let foreign = [
            "",
            "INFO working job=\"restore\" bytes=1 total_bytes=2",
            r#"{"message":"working","job":"restore","bytes":1}"#,
            r#"{"message":"working","job":"restore","bytes":-1,"total_bytes":"2"}"#,
            r#"{"message":"resting","job":"restore","bytes":1,"total_bytes":2}"#,
        ];
        for log in foreign {
            assert_eq!(
                ProgressSample::latest_for_job(log, RESTORE_JOB),
                None,
                "{log}"
            );
        }
    }

    #[test]
    fn percent_is_an_integer_and_at_most_100() {
        assert_eq!(sample(0, 0).percent(), None);
        assert_eq!(sample(0, 3).percent(), Some(0));
        assert_eq!(sample(2, 3).percent(), Some(66));
        assert_eq!(sample(4, 3).percent(), Some(100));
        assert_eq!(sample(u64::MAX, u64::MAX).percent(), Some(100));
    }
}
