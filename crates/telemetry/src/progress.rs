//! Progress of a long job: a bar with rate and remaining time on a terminal, else a plain line now
//! and then.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a bar is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(150);
/// How often a line is logged where there is no terminal.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// One look at a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Bytes to handle; 0 while unknown.
    pub total_bytes: u64,
    /// Bytes handled.
    pub done_bytes: u64,
    /// More about it, such as the revision reached.
    pub note: String,
}

/// Shows the progress of a job until it is dropped.
#[derive(Debug)]
pub struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts showing what `look` sees, under the given name.
    pub fn start(name: &str, look: impl Fn() -> Sample + Send + 'static) -> Self {
        let (stop, stopped) = channel::<()>();
        let name = name.to_owned();
        let is_terminal = io::stderr().is_terminal();
        let thread = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || {
                let bar = is_terminal.then(|| new_bar(&name));
                let every = if is_terminal { DRAW_EVERY } else { LOG_EVERY };
                while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    show(&name, &look(), bar.as_ref());
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

impl Drop for Progress {
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

fn show(name: &str, sample: &Sample, bar: Option<&ProgressBar>) {
    if let Some(bar) = bar {
        bar.set_length(sample.total_bytes);
        bar.set_position(sample.done_bytes);
        bar.set_message(sample.note.clone());
        return;
    }
    let percent = (sample.done_bytes * 100)
        .checked_div(sample.total_bytes)
        .unwrap_or(0);
    tracing::info!(
        job = name,
        percent,
        bytes = sample.done_bytes,
        note = sample.note,
        "working"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_ends_the_display() {
        let progress = Progress::start("test", Sample::default);
        assert!(progress.thread.is_some());
        drop(progress);
    }
}
