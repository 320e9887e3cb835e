//! Progress of a restore. It is only reported to users; no decision depends on it.

use jiff::Timestamp;
use mainstay_telemetry::{ProgressSample, RESTORE_JOB};

use crate::intervals;

/// Progress of a restore in whole percent, so that the status changes at most a hundred times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestoreProgress {
    /// 0 to 100.
    pub(crate) percent: u8,
    /// Bytes to read.
    pub(crate) total_bytes: u64,
}

impl RestoreProgress {
    /// Converts a sample; `None` while the total is unknown.
    pub(crate) fn from_sample(sample: &ProgressSample) -> Option<Self> {
        Some(Self {
            percent: sample.percent()?,
            total_bytes: sample.total_bytes,
        })
    }

    /// Approximate bytes read, from the percentage.
    pub(crate) fn done_bytes(self) -> u64 {
        let done = u128::from(self.total_bytes) * u128::from(self.percent) / 100;
        u64::try_from(done).unwrap_or(self.total_bytes)
    }
}

/// Last read of the log of one Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogRead {
    pub(crate) job_uid: String,
    /// Time of the last attempt.
    pub(crate) read_at: Timestamp,
    /// Whether the last attempt failed.
    pub(crate) has_failed: bool,
    /// Last progress found.
    pub(crate) progress: Option<RestoreProgress>,
}

impl LogRead {
    /// The state after a read; `log` is `None` when it failed. The last progress of the same Job is kept.
    pub(crate) fn from_log(
        known: Option<&Self>,
        job: &str,
        log: Option<&str>,
        read_at: Timestamp,
    ) -> Self {
        let sample = log.and_then(|log| ProgressSample::latest_for_job(log, RESTORE_JOB));
        let reported = sample.as_ref().and_then(RestoreProgress::from_sample);
        // Another Job is another attempt, which starts at zero.
        let known = known.filter(|known| known.job_uid == job);
        Self {
            job_uid: job.to_owned(),
            read_at,
            has_failed: log.is_none(),
            progress: reported.or_else(|| known?.progress),
        }
    }

    /// Whether the log is due to be read again.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let interval = if self.has_failed {
            intervals::LOG_RETRY
        } else {
            intervals::LOG_POLL
        };
        now.duration_since(self.read_at).unsigned_abs() >= interval
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::decide::tests::fixture::noon;

    fn progress_line(done: u64, total: u64) -> String {
        format!(
            r#"{{"level":"INFO","message":"working","job":"restore","bytes":{done},"total_bytes":{total}}}"#
        )
    }

    fn read_at_noon(before: Option<&LogRead>, log: Option<&str>) -> LogRead {
        LogRead::from_log(before, "j1", log, noon())
    }

    #[test]
    fn newest_log_line_gives_the_progress() {
        let log = format!(
            "{}\n{}\nbye\n",
            progress_line(1, 200),
            progress_line(87, 200)
        );
        let known = read_at_noon(None, Some(&log)).progress.unwrap();
        assert_eq!((known.percent, known.total_bytes), (43, 200));
        assert_eq!(known.done_bytes(), 86, "rounded to whole percent");
    }

    #[test]
    fn progress_without_a_total_has_no_percentage() {
        assert_eq!(
            read_at_noon(None, Some(&progress_line(5, 0))).progress,
            None
        );
        assert_eq!(read_at_noon(None, Some("")).progress, None);
    }

    #[test]
    fn unreadable_log_keeps_the_last_progress() {
        let never = read_at_noon(None, None);
        assert_eq!((never.progress, never.has_failed), (None, true));
        let known = read_at_noon(None, Some(&progress_line(50, 100)));
        let still = read_at_noon(Some(&known), None);
        assert_eq!((still.progress, still.has_failed), (known.progress, true));
        let other_job = LogRead::from_log(Some(&known), "j2", None, noon());
        assert_eq!(other_job.progress, None, "another attempt starts at zero");
    }

    #[test]
    fn log_is_read_periodically_and_less_often_after_a_failure() {
        let later = |seconds| noon() + SignedDuration::from_secs(seconds);
        let due = |known: &LogRead, seconds| known.is_due(later(seconds));
        let known = read_at_noon(None, Some(""));
        assert_eq!([due(&known, 3), due(&known, 5)], [false, true]);
        let failed = read_at_noon(None, None);
        assert_eq!([due(&failed, 5), due(&failed, 20)], [false, true]);
    }
}
