//! A second watch, ahead of the first.
//!
//! etcd queues 128 changes for a watcher. One that is too slow once is fed from the database from then on, 1 000
//! revisions ten times a second: under a load above that it never comes back by itself. A watch that begins at the
//! present is fed at once. So the first one only has to reach the revision the second one began with, and what the
//! second one gives meanwhile is kept, up to a limit.

use std::collections::VecDeque;
use std::time::Duration;

use etcd_client::{WatchResponse, WatchStream};
use mainstay_ids::Revision;
use tokio::time::Instant;
use tracing::debug;

/// Bytes kept while the first watch catches up.
const MAX_BUFFERED_BYTES: usize = 4 << 20;
/// What an event takes besides its key and value.
const EVENT_OVERHEAD_BYTES: usize = 256;
/// A watch further behind than this would not catch up before the limit is reached.
const MAX_LAG_REVISIONS: i64 = 10_000;
/// After one that was given up.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Revisions etcd had when it sent this and the watch has not seen yet.
pub(super) fn count_lag_revisions(response: &WatchResponse) -> i64 {
    let now = response
        .header()
        .map_or(0, etcd_client::ResponseHeader::revision);
    let last = response.events().iter().rev().find_map(|event| event.kv());
    last.map_or(0, |last| now.saturating_sub(last.mod_revision()).max(0))
}

/// When to leap.
#[derive(Default)]
pub(super) struct CatchUpBackoff(Option<Instant>);

impl CatchUpBackoff {
    /// Whether a watch this far behind is worth a second one.
    pub(super) fn should_start(&self, behind: i64) -> bool {
        let is_rested = self.0.is_none_or(|until| Instant::now() >= until);
        is_rested && (1..=MAX_LAG_REVISIONS).contains(&behind)
    }

    pub(super) fn start(&mut self) {
        self.0 = Some(Instant::now() + RETRY_DELAY);
    }
}

/// See the module.
pub(super) struct CatchUpWatch {
    stream: WatchStream,
    /// The first revision it gives; not known before etcd has said so.
    first_revision: Option<Revision>,
    buffered: VecDeque<WatchResponse>,
    buffered_bytes: usize,
}

impl CatchUpWatch {
    /// A watch that was opened without a revision.
    pub(super) fn new(stream: WatchStream) -> Self {
        Self {
            stream,
            first_revision: None,
            buffered: VecDeque::new(),
            buffered_bytes: 0,
        }
    }

    /// Keeps what comes next; `false` when this watch is of no use any more. May be dropped at any time.
    pub(super) async fn buffer_next(&mut self) -> bool {
        match self.stream.message().await {
            Ok(Some(response)) => self.accept(response),
            Ok(None) => false,
            Err(error) => {
                debug!(error = %error, "the watch ahead broke off");
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

    /// Whether the first watch has given everything before what this one gives.
    pub(super) fn is_reached(&self, complete: Revision) -> bool {
        self.first_revision.is_some_and(|from| complete.next() >= from)
    }

    /// The watch to go on with, and what it has given already.
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
    fn only_a_watch_that_can_catch_up_is_worth_a_second_one() {
        let rest = CatchUpBackoff::default();
        let is_worth = |behind| rest.should_start(behind);
        assert!(!is_worth(0), "it is not behind");
        assert!(is_worth(1));
        assert!(is_worth(MAX_LAG_REVISIONS));
        assert!(!is_worth(MAX_LAG_REVISIONS + 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_watch_is_not_tried_again_at_once() {
        let mut rest = CatchUpBackoff::default();
        rest.start();
        assert!(!rest.should_start(1));
        tokio::time::advance(RETRY_DELAY).await;
        assert!(rest.should_start(1));
    }
}
