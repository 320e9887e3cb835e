//! A second watch that lets a lagging watch catch up.
//!
//! etcd queues 128 changes per watcher. A watcher that was too slow once becomes unsynced and is fed from the database,
//! 1 000 revisions ten times a second; under a higher load it never catches up. A watch that starts at the current
//! revision is synced at once. So the lagging watch only has to reach the revision where the second watch started;
//! responses of the second watch are buffered meanwhile, up to a limit.

use std::collections::VecDeque;
use std::time::Duration;

use etcd_client::{WatchResponse, WatchStream};
use mainstay_ids::Revision;
use tokio::time::Instant;
use tracing::debug;

/// Limit of buffered bytes while the first watch catches up.
const MAX_BUFFERED_BYTES: usize = 4 << 20;
/// Estimated memory of an event besides its key and value, in bytes.
const EVENT_OVERHEAD_BYTES: usize = 256;
/// Largest lag worth a second watch: beyond it, the buffer would fill before the first watch catches up.
const MAX_LAG_REVISIONS: i64 = 10_000;
/// Pause before another second watch is opened.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Revisions that etcd had when it sent this response and that the watch has not delivered.
pub(super) fn count_lag_revisions(response: &WatchResponse) -> i64 {
    let now = response
        .header()
        .map_or(0, etcd_client::ResponseHeader::revision);
    let last = response.events().iter().rev().find_map(|event| event.kv());
    last.map_or(0, |last| now.saturating_sub(last.mod_revision()).max(0))
}

/// Limits how often a second watch is opened.
#[derive(Default)]
pub(super) struct CatchUpBackoff(Option<Instant>);

impl CatchUpBackoff {
    /// Whether a watch with this lag is worth a second one.
    pub(super) fn should_start(&self, lag: i64) -> bool {
        let is_rested = self.0.is_none_or(|until| Instant::now() >= until);
        is_rested && (1..=MAX_LAG_REVISIONS).contains(&lag)
    }

    pub(super) fn start(&mut self) {
        self.0 = Some(Instant::now() + RETRY_DELAY);
    }
}

pub(super) struct CatchUpWatch {
    stream: WatchStream,
    /// First revision it delivers; known once etcd confirms its creation.
    first_revision: Option<Revision>,
    buffered: VecDeque<WatchResponse>,
    buffered_bytes: usize,
}

impl CatchUpWatch {
    /// Takes a watch that was opened without a start revision.
    pub(super) fn new(stream: WatchStream) -> Self {
        Self {
            stream,
            first_revision: None,
            buffered: VecDeque::new(),
            buffered_bytes: 0,
        }
    }

    /// Buffers the next response; `false` if this watch is of no use any more. Cancel-safe.
    pub(super) async fn buffer_next(&mut self) -> bool {
        match self.stream.message().await {
            Ok(Some(response)) => self.accept(response),
            Ok(None) => false,
            Err(error) => {
                debug!(error = %error, "catch-up watch failed");
                false
            }
        }
    }

    fn accept(&mut self, response: WatchResponse) -> bool {
        if response.canceled() {
            return false;
        }
        if response.created() {
            let now = response.header().map(etcd_client::ResponseHeader::revision);
            self.first_revision = now.map(|now| Revision(now).next());
            return self.first_revision.is_some();
        }
        self.buffered_bytes = self.buffered_bytes.saturating_add(estimate_size(&response));
        self.buffered.push_back(response);
        self.buffered_bytes <= MAX_BUFFERED_BYTES
    }

    /// Whether the first watch has delivered everything before the start of this one.
    pub(super) fn is_reached(&self, complete: Revision) -> bool {
        self.first_revision
            .is_some_and(|from| complete.next() >= from)
    }

    /// The watch to continue with, and its buffered responses.
    pub(super) fn into_parts(self) -> (WatchStream, VecDeque<WatchResponse>) {
        (self.stream, self.buffered)
    }
}

fn estimate_size(response: &WatchResponse) -> usize {
    let pairs = response.events().iter().filter_map(|event| event.kv());
    pairs
        .map(|kv| EVENT_OVERHEAD_BYTES + kv.key().len() + kv.value().len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_watch_starts_only_within_the_lag_limit() {
        let rest = CatchUpBackoff::default();
        let is_worth = |lag| rest.should_start(lag);
        assert!(!is_worth(0), "it does not lag");
        assert!(is_worth(1));
        assert!(is_worth(MAX_LAG_REVISIONS));
        assert!(!is_worth(MAX_LAG_REVISIONS + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn second_watch_is_retried_only_after_a_delay() {
        let mut rest = CatchUpBackoff::default();
        rest.start();
        assert!(!rest.should_start(1));
        tokio::time::advance(RETRY_DELAY).await;
        assert!(rest.should_start(1));
    }
}
