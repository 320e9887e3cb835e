//! How far a restore is: what its Job logged last.
//!
//! Nothing is decided by it; people want to know. A log that cannot be read, because nobody may, because the kubelet is away
//! or because nothing runs yet, is therefore no error.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use kube::{Client, ResourceExt};
use mainstay_telemetry::{ErrorChain, RESTORE_JOB, ProgressSample};
use tracing::debug;

use crate::caches::Stores;
use crate::caches::packed::{JOB_UID_LABEL, find_all};
use crate::cadence;

/// The newest look is near the end; a warning or a result may stand behind it.
const TAIL_LINES: i64 = 20;
/// No line is that long, whoever wrote it.
const MAX_LOG_BYTES: i64 = 64 << 10;
/// A kubelet that is away must not hold up a pass.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// How far a restore is, as coarse as it is told: it changes a hundred times at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreProgress {
    /// Whole percents of what is to be read.
    pub percent: u8,
    /// Bytes to be read.
    pub total_bytes: u64,
}

impl RestoreProgress {
    /// What a look comes to; nothing while it is not known how much there is to do.
    pub fn from_sample(sample: &ProgressSample) -> Option<Self> {
        Some(Self {
            percent: sample.percent()?,
            total_bytes: sample.total_bytes,
        })
    }

    /// About how many bytes were read.
    pub fn done_bytes(self) -> u64 {
        let done = u128::from(self.total_bytes) * u128::from(self.percent) / 100;
        u64::try_from(done).unwrap_or(self.total_bytes)
    }
}

/// What is known of the log of one Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRead {
    /// Which Job.
    pub job_uid: String,
    /// When it was last tried to read the log.
    pub read_at: Timestamp,
    /// Whether that was in vain.
    pub has_failed: bool,
    /// What it last told.
    pub progress: Option<RestoreProgress>,
}

impl LogRead {
    /// What is known after the log of a Job was read, or could not be: then what was known stays.
    pub fn from_log(known: Option<&Self>, job: &str, log: Option<&str>, at: Timestamp) -> Self {
        let sample = log.and_then(|log| ProgressSample::latest_for_job(log, RESTORE_JOB));
        let told = sample.as_ref().and_then(RestoreProgress::from_sample);
        let known = known.filter(|known| known.job_uid == job);
        Self {
            job_uid: job.to_owned(),
            read_at: at,
            has_failed: log.is_none(),
            progress: told.or_else(|| known?.progress),
        }
    }

    /// Whether the log may be read again.
    pub fn is_due(&self, now: Timestamp) -> bool {
        let pause = if self.has_failed {
            cadence::LOG_RETRY
        } else {
            cadence::LOG_POLL
        };
        now.duration_since(self.read_at).unsigned_abs() >= pause
    }
}

/// The pod of a Job, once it runs.
pub(crate) fn find_running_pod(stores: &Stores, namespace: &str, job: &str) -> Option<String> {
    let pods = find_all::<Pod>(&stores.pods, |pod| {
        let labels = pod.labels.as_ref();
        let of = labels.and_then(|labels| labels.get(JOB_UID_LABEL));
        pod.namespace.as_deref() == Some(namespace) && of.is_some_and(|of| of == job)
    });
    let runs = |pod: &&Pod| {
        let status = pod.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some("Running")
    };
    pods.iter().find(runs).map(ResourceExt::name_any)
}

/// The end of the log of a pod.
pub(crate) async fn read_log(client: &Client, namespace: &str, pod: &str) -> Option<String> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let end = LogParams {
        tail_lines: Some(TAIL_LINES),
        limit_bytes: Some(MAX_LOG_BYTES),
        ..LogParams::default()
    };
    match tokio::time::timeout(LOG_TIMEOUT, pods.logs(pod, &end)).await {
        Ok(Ok(log)) => Some(log),
        Ok(Err(error)) => {
            debug!(pod, error = %ErrorChain(&error), "how far a restore is cannot be read");
            None
        }
        Err(_) => {
            debug!(pod, "how far a restore is was not told in time");
            None
        }
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
    fn the_newest_line_tells_how_far_it_is() {
        let log = format!("{}\n{}\nbye\n", progress_line(1, 200), progress_line(87, 200));
        let known = read_at_noon(None, Some(&log)).progress.unwrap();
        assert_eq!((known.percent, known.total_bytes), (43, 200));
        assert_eq!(known.done_bytes(), 86, "as coarse as the percents");
    }

    #[test]
    fn without_a_total_there_are_no_percents() {
        assert_eq!(read_at_noon(None, Some(&progress_line(5, 0))).progress, None);
        assert_eq!(read_at_noon(None, Some("")).progress, None);
    }

    #[test]
    fn a_log_that_cannot_be_read_changes_nothing() {
        let never = read_at_noon(None, None);
        assert_eq!((never.progress, never.has_failed), (None, true));
        let known = read_at_noon(None, Some(&progress_line(50, 100)));
        let still = read_at_noon(Some(&known), None);
        assert_eq!((still.progress, still.has_failed), (known.progress, true));
        let another = LogRead::from_log(Some(&known), "j2", None, noon());
        assert_eq!(another.progress, None, "another attempt begins anew");
    }

    #[test]
    fn a_log_is_read_now_and_then_and_rarely_when_that_is_in_vain() {
        let later = |seconds| noon() + SignedDuration::from_secs(seconds);
        let due = |known: &LogRead, seconds| known.is_due(later(seconds));
        let known = read_at_noon(None, Some(""));
        assert_eq!([due(&known, 3), due(&known, 5)], [false, true]);
        let vain = read_at_noon(None, None);
        assert_eq!([due(&vain, 5), due(&vain, 20)], [false, true]);
    }
}
