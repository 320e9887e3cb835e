//! Watches all keys; reopens the watch after the last complete revision whenever it breaks.

mod catch_up;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, WatchOptions, WatchResponse, WatchStream};
use mainstay_ids::Revision;
use mainstay_telemetry::ErrorChain;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use self::catch_up::{CatchUpBackoff, CatchUpWatch, count_lag_revisions};
use crate::etcd::{EtcdCall, EtcdClient, EtcdError};

/// Responses read ahead; with fragmentation, each is about as large as etcd's request limit.
const QUEUE_CAPACITY: usize = 4;
/// Largest accepted message: one event may be as large as etcd's request limit, which operators can raise.
const MAX_MESSAGE_BYTES: usize = 512 << 20;
/// Pause between two attempts to open the watch.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Item of the watch.
pub enum WatchItem {
    /// Events in revision order.
    Events {
        events: Vec<etcd_client::Event>,
        /// Whether the last revision is complete; if not, more of its events follow.
        is_complete: bool,
        /// Client of the same connection.
        client: Arc<Client>,
    },
    /// The watch is reopened or replaced: events of an incomplete revision arrive again.
    Reopened {
        /// Set if opening failed.
        error: Option<EtcdError>,
    },
    /// etcd has compacted revisions that were not read yet.
    Compacted {
        /// Oldest revision etcd still has.
        oldest: Revision,
    },
}

/// A watch kept open by a background task, which ends when this is dropped.
pub struct EtcdWatcher {
    items: mpsc::Receiver<WatchItem>,
    task: tokio::task::JoinHandle<()>,
}

impl EtcdWatcher {
    /// Watches all keys after a revision.
    pub fn start(etcd: EtcdClient, after: Revision) -> Self {
        let (sender, items) = mpsc::channel(QUEUE_CAPACITY);
        let reader = WatchReader {
            etcd,
            last_complete: after,
            sender,
        };
        let task = tokio::spawn(reader.run());
        Self { items, task }
    }

    /// The next item; `None` after [`WatchItem::Compacted`].
    pub async fn next(&mut self) -> Option<WatchItem> {
        self.items.recv().await
    }
}

impl Drop for EtcdWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct WatchReader {
    etcd: EtcdClient,
    /// Last revision that was forwarded completely.
    last_complete: Revision,
    sender: mpsc::Sender<WatchItem>,
}

/// Why a watch ended.
enum WatchEnd {
    ReceiverDropped,
    Compacted,
    /// To be reopened.
    Broken,
}

impl WatchReader {
    async fn run(mut self) {
        loop {
            let trouble = match self.connect().await {
                Ok((client, stream)) => match self.read_stream(Arc::new(client), stream).await {
                    WatchEnd::ReceiverDropped | WatchEnd::Compacted => return,
                    WatchEnd::Broken => None,
                },
                Err(error) => Some(error),
            };
            if self
                .sender
                .send(WatchItem::Reopened { error: trouble })
                .await
                .is_err()
            {
                return;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    async fn connect(&self) -> Result<(Client, WatchStream), EtcdError> {
        let client = self.etcd.own_client().await?;
        let stream = self
            .open_watch(&client, Some(self.last_complete.next()))
            .await?;
        Ok((client, stream))
    }

    /// Watches all keys from a revision on; from the current revision if `None`.
    async fn open_watch(
        &self,
        client: &Client,
        from: Option<Revision>,
    ) -> Result<WatchStream, EtcdError> {
        let limit = self.etcd.config().request_timeout;
        let mut watch = client
            .watch_client()
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
        // Fragments keep a response below the message limit, even one transaction with large values.
        let options = WatchOptions::new()
            .with_from_key()
            .with_start_revision(from.map_or(0, |from| from.0))
            .with_fragment();
        let opening = watch.watch(vec![0u8], Some(options));
        crate::etcd::with_timeout(limit, EtcdCall::Watch, opening).await
    }

    async fn read_stream(&mut self, client: Arc<Client>, mut stream: WatchStream) -> WatchEnd {
        let (mut is_fresh, mut leap, mut rest) = (true, None, CatchUpBackoff::default());
        // Responses already received by the catch-up watch that replaced the stream.
        let mut kept = VecDeque::new();
        loop {
            let response = match kept.pop_front() {
                Some(response) => response,
                None => match next_response(&mut stream, &mut leap, &mut rest).await {
                    Ok(Some(response)) => response,
                    Ok(None) => return WatchEnd::Broken,
                    Err(error) => {
                        debug!(error = %error, revision = %self.last_complete, "watch failed, reopening");
                        return WatchEnd::Broken;
                    }
                },
            };
            if response.canceled() {
                return self.on_canceled(&response).await;
            }
            if response.events().is_empty() {
                continue;
            }
            // Checked once events have arrived: a compaction between an earlier check and the watch start would go unnoticed.
            if std::mem::take(&mut is_fresh)
                && let Some(end) = self.check_start_compacted().await
            {
                return end;
            }
            if leap.is_none()
                && kept.is_empty()
                && rest.should_start(count_lag_revisions(&response))
            {
                rest.start();
                leap = match self.open_watch(&client, None).await {
                    Ok(ahead) => Some(CatchUpWatch::new(ahead)),
                    Err(error) => {
                        debug!(error = %ErrorChain(&error), "failed to open a catch-up watch, continuing with the lagging one");
                        None
                    }
                };
            }
            if !self.forward(response, &client).await {
                return WatchEnd::ReceiverDropped;
            }
            if let Some(reached) = leap.take_if(|leap| leap.is_reached(self.last_complete)) {
                debug!(revision = %self.last_complete, "watch caught up, switching to the catch-up watch");
                (stream, kept) = reached.into_parts();
                // The replaced watch may have delivered part of a revision, which the new one sends again.
                let reopened = WatchItem::Reopened { error: None };
                if self.sender.send(reopened).await.is_err() {
                    return WatchEnd::ReceiverDropped;
                }
            }
        }
    }

    /// Some etcd versions accept a watch that starts at exactly the compacted revision, although the deletes of that
    /// revision are gone: the events look complete and are not. Treats that start as compacted.
    async fn check_start_compacted(&self) -> Option<WatchEnd> {
        let limit = self.etcd.config().request_timeout;
        match self.etcd.has_history_after(self.last_complete, limit).await {
            Ok(true) => None,
            Ok(false) => {
                let oldest = self.last_complete.next();
                let _ = self.sender.send(WatchItem::Compacted { oldest }).await; // the receiver may be gone
                Some(WatchEnd::Compacted)
            }
            Err(error) => {
                debug!(error = %ErrorChain(&error), revision = %self.last_complete, "failed to check whether the watch start is compacted, reopening");
                Some(WatchEnd::Broken)
            }
        }
    }

    /// etcd cancels a watch because its start is compacted, or for a reason of its own.
    async fn on_canceled(&self, response: &WatchResponse) -> WatchEnd {
        let oldest = Revision(response.compact_revision());
        if oldest <= self.last_complete {
            warn!(revision = %self.last_complete, reason = response.cancel_reason(), "etcd cancelled the watch, reopening it");
            return WatchEnd::Broken;
        }
        let _ = self.sender.send(WatchItem::Compacted { oldest }).await; // the receiver may be gone
        WatchEnd::Compacted
    }

    async fn forward(&mut self, response: WatchResponse, client: &Arc<Client>) -> bool {
        let is_complete = !response.0.fragment;
        let events: Vec<etcd_client::Event> = response
            .0
            .events
            .into_iter()
            .map(etcd_client::Event)
            .collect();
        let last = events.iter().rev().find_map(|event| event.kv());
        if let Some(last) = last.map(|kv| Revision(kv.mod_revision())) {
            // The rest of a fragmented revision is still to come; a reopened watch must start with it.
            let complete = if is_complete { last } else { last.previous() };
            self.last_complete = self.last_complete.max(complete);
        }
        let item = WatchItem::Events {
            events,
            is_complete,
            client: Arc::clone(client),
        };
        self.sender.send(item).await.is_ok()
    }
}

/// Returns the next response of the watch; meanwhile buffers responses of the catch-up watch.
async fn next_response(
    stream: &mut WatchStream,
    leap: &mut Option<CatchUpWatch>,
    rest: &mut CatchUpBackoff,
) -> Result<Option<WatchResponse>, etcd_client::Error> {
    loop {
        let Some(ahead) = leap else {
            return stream.message().await;
        };
        tokio::select! {
            response = stream.message() => return response,
            is_useful = ahead.buffer_next() => {
                if !is_useful {
                    *leap = None;
                    rest.start();
                }
            }
        }
    }
}
