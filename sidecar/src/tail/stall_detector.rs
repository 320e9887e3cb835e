//! Detects a stalled watch: etcd has newer revisions, but neither events nor an error arrive.

use std::time::Duration;

use tokio::time::Instant;

/// Silence after which a lagging watch counts as stalled: etcd feeds such a watch ten times a second.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time since the last watch response.
pub(super) struct StallDetector {
    last_progress: Instant,
}

impl StallDetector {
    pub(super) fn new() -> Self {
        Self {
            last_progress: Instant::now(),
        }
    }

    /// Records that something arrived.
    pub(super) fn record_progress(&mut self) {
        self.last_progress = Instant::now();
    }

    /// Whether a watch that lags by this many revisions must be reopened; restarts the timer if so. A watch that has
    /// delivered everything, or that is not being read, may be silent.
    pub(super) fn is_stalled(&mut self, lag: i64, is_read: bool) -> bool {
        if lag == 0 || !is_read {
            self.record_progress();
        }
        let is_stalled = self.last_progress.elapsed() >= STALL_TIMEOUT;
        if is_stalled {
            self.record_progress();
        }
        is_stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks once a second and returns how often the watch stalled.
    async fn count_stalls(seconds: u32, mut check: impl FnMut() -> bool) -> usize {
        let mut times = 0;
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            times += usize::from(check());
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn lagging_watch_without_events_is_stalled_every_30_seconds() {
        let mut silence = StallDetector::new();
        assert_eq!(count_stalls(29, || silence.is_stalled(1, true)).await, 0);
        assert_eq!(count_stalls(1, || silence.is_stalled(1, true)).await, 1);
        assert_eq!(count_stalls(60, || silence.is_stalled(1, true)).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn watch_without_lag_or_without_a_receiver_is_not_stalled() {
        let mut silence = StallDetector::new();
        assert_eq!(count_stalls(90, || silence.is_stalled(0, true)).await, 0);
        assert_eq!(count_stalls(90, || silence.is_stalled(9, false)).await, 0);
        assert_eq!(count_stalls(29, || silence.is_stalled(9, true)).await, 0);
        silence.record_progress();
        assert_eq!(count_stalls(29, || silence.is_stalled(9, true)).await, 0);
    }
}
