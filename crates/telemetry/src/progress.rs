//! Progress of a long job: a bar with rate and remaining time on a terminal, else a line of the log now and then.
//!
//! The line is also for programs: with JSON logs, whoever has the log knows how far the job is. What is written here is read
//! here, by [`Sample::latest_for_job`].

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

/// How often a bar is drawn.
const DRAW_INTERVAL: Duration = Duration::from_millis(150);
/// How often a line is logged where there is no terminal: as often as the controller looks.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// What every line about progress says.
const PROGRESS_MESSAGE: &str = "working";

/// The name under which a restore shows its progress.
pub const RESTORE_JOB: &str = "restore";

/// One look at a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgressSample {
    /// Bytes to handle; 0 while unknown.
    pub total_bytes: u64,
    /// Bytes handled.
    pub done_bytes: u64,
    /// More about it, such as the revision reached.
    pub note: String,
}

impl ProgressSample {
    /// How much is done, in whole percents; `None` while nobody knows how much there is to do.
    pub fn percent(&self) -> Option<u8> {
        let done = u128::from(self.done_bytes.min(self.total_bytes)) * 100;
        let percent = done.checked_div(u128::from(self.total_bytes))?;
        u8::try_from(percent).ok()
    }

    /// The newest look at a job that a log of JSON lines tells. Lines about anything else, and halves of lines, are passed
    /// over.
    pub fn latest_for_job(log: &str, job: &str) -> Option<Self> {
        parse_progress_lines(log).find(|line| line.job == job).map(Self::from)
    }

    /// The same, whatever the job is called.
    pub fn latest(log: &str) -> Option<Self> {
        parse_progress_lines(log).next().map(Self::from)
    }
}

/// A line about progress, as [`show`] writes it.
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

/// The lines about progress, the newest first.
fn parse_progress_lines(log: &str) -> impl Iterator<Item = ProgressLogLine> {
    let lines = log.lines().rev();
    let looks = lines.filter_map(|line| serde_json::from_str::<ProgressLogLine>(line).ok());
    looks.filter(|line| line.message == PROGRESS_MESSAGE)
}

/// Shows the progress of a job until it is dropped.
#[derive(Debug)]
pub struct ProgressReporter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressReporter {
    /// Starts showing what `look` sees, under the given name.
    pub fn start(name: &str, look: impl Fn() -> ProgressSample + Send + 'static) -> Self {
        let (stop, stopped) = channel::<()>();
        let name = name.to_owned();
        let is_terminal = io::stderr().is_terminal();
        let thread = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || {
                let bar = is_terminal.then(|| new_bar(&name));
                let every = if is_terminal { DRAW_INTERVAL } else { LOG_INTERVAL };
                while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    report_sample(&name, &look(), bar.as_ref());
                }
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
            });
        // Without a thread there is no progress to see; the job itself goes on.
        Self {
            stop: Some(stop),
            thread: thread.ok(),
        }
    }
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
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
    // The fields are those of `Line`.
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

    /// A log that is kept.
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

    /// What a program logs that does this.
    fn capture_log(work: impl FnOnce()) -> String {
        let log = LogBuffer::default();
        let kept = log.clone();
        let subscriber = logs::json_subscriber(move || kept.clone(), EnvFilter::new("info"));
        tracing::subscriber::with_default(subscriber, work);
        String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn dropping_ends_the_display() {
        let progress = ProgressReporter::start("test", ProgressSample::default);
        assert!(progress.thread.is_some());
        drop(progress);
    }

    #[test]
    fn what_a_job_logs_of_its_progress_is_what_is_read() {
        let log = capture_log(|| {
            report_sample(RESTORE_JOB, &sample(1, 200), None);
            report_sample(RESTORE_JOB, &sample(86, 200), None);
            report_sample("verify", &sample(200, 200), None);
            tracing::warn!("an object is unusable, taking another way");
        });
        assert_eq!(ProgressSample::latest_for_job(&log, RESTORE_JOB), Some(sample(86, 200)));
        assert_eq!(ProgressSample::latest_for_job(&log, "compact"), None);
        assert_eq!(ProgressSample::latest(&log), Some(sample(200, 200)));
        let (cut, _) = log.split_once(r#""bytes":86"#).unwrap();
        assert_eq!(ProgressSample::latest_for_job(cut, RESTORE_JOB), Some(sample(1, 200)));
    }

    #[test]
    fn a_log_of_another_shape_tells_nothing() {
        let foreign = [
            "",
            "INFO working job=\"restore\" bytes=1 total_bytes=2",
            r#"{"message":"working","job":"restore","bytes":1}"#,
            r#"{"message":"working","job":"restore","bytes":-1,"total_bytes":"2"}"#,
            r#"{"message":"resting","job":"restore","bytes":1,"total_bytes":2}"#,
        ];
        for log in foreign {
            assert_eq!(ProgressSample::latest_for_job(log, RESTORE_JOB), None, "{log}");
        }
    }

    #[test]
    fn percents_are_whole_and_never_more_than_all_of_it() {
        assert_eq!(sample(0, 0).percent(), None);
        assert_eq!(sample(0, 3).percent(), Some(0));
        assert_eq!(sample(2, 3).percent(), Some(66));
        assert_eq!(sample(4, 3).percent(), Some(100));
        assert_eq!(sample(u64::MAX, u64::MAX).percent(), Some(100));
    }
}
