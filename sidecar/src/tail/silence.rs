//! Notices a watch that hangs: etcd has more, nothing arrives, and no error tells why.

use std::time::Duration;

use tokio::time::Instant;

/// etcd feeds a watch that is behind ten times a second.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Since when the watch is silent.
pub(super) struct StallDetector {
    last_progress: Instant,
}

impl StallDetector {
    /// Begins now.
    pub(super) fn new() -> Self {
        Self {
            last_progress: Instant::now(),
        }
    }

    /// Something arrived.
    pub(super) fn record_progress(&mut self) {
        self.last_progress = Instant::now();
    }

    /// Whether the watch is to be opened anew, being this many revisions behind; then the silence begins anew, too. A
    /// watch nobody reads, or one that has given everything, may be silent.
    pub(super) fn is_stalled(&mut self, behind: i64, is_read: bool) -> bool {
        if behind == 0 || !is_read {
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

    /// A look every second, for a while; how often the watch was opened anew.
    async fn count_stalls(seconds: u32, mut look: impl FnMut() -> bool) -> usize {
        let mut times = 0;
        for _ in 0..seconds {
            tokio::time::advance(Duration::from_secs(1)).await;
            times += usize::from(look());
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_behind_and_silent_is_opened_anew_now_and_again() {
        let mut silence = StallDetector::new();
        assert_eq!(count_stalls(29, || silence.is_stalled(1, true)).await, 0);
        assert_eq!(count_stalls(1, || silence.is_stalled(1, true)).await, 1);
        assert_eq!(count_stalls(60, || silence.is_stalled(1, true)).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_with_nothing_to_tell_or_nobody_to_listen_may_be_silent() {
        let mut silence = StallDetector::new();
        assert_eq!(count_stalls(90, || silence.is_stalled(0, true)).await, 0);
        assert_eq!(count_stalls(90, || silence.is_stalled(9, false)).await, 0);
        assert_eq!(count_stalls(29, || silence.is_stalled(9, true)).await, 0);
        silence.record_progress();
        assert_eq!(count_stalls(29, || silence.is_stalled(9, true)).await, 0);
    }
}
