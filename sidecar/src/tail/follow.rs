//! One watch on everything, opened again behind the last whole revision whenever it breaks.

mod leap;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, WatchOptions, WatchResponse, WatchStream};
use mainstay_ids::Revision;
use mainstay_telemetry::ErrorChain;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use self::leap::{CatchUpWatch, CatchUpBackoff, count_lag_revisions};
use crate::etcd::{EtcdClient, EtcdError, EtcdCall};

/// Responses read ahead; with fragments each is about as large as etcd's request limit.
const QUEUE_CAPACITY: usize = 4;
/// One event may be as large as etcd's request limit, which operators raise.
const MAX_MESSAGE_BYTES: usize = 512 << 20;
/// Between two attempts to open the watch.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// What the watch gives.
pub enum WatchItem {
    /// Events; when `is_complete`, the last revision in it is complete.
    Events {
        /// The events.
        events: Vec<etcd_client::Event>,
        /// Whether more events of the last revision may follow.
        is_complete: bool,
        /// A client of the connection they came by.
        client: Arc<Client>,
    },
    /// The watch broke off and is opened again, or another one takes its place: revisions not whole yet arrive anew.
    Reopened {
        /// Why it could not be opened, if it could not.
        error: Option<EtcdError>,
    },
    /// etcd has compacted what was to be watched.
    Compacted {
        /// The oldest revision etcd still has.
        oldest: Revision,
    },
}

/// A watch that is kept open by a task of its own. It ends when this is dropped.
pub struct EtcdWatcher {
    items: mpsc::Receiver<WatchItem>,
    task: tokio::task::JoinHandle<()>,
}

impl EtcdWatcher {
    /// Watches everything after a revision.
    pub fn start(etcd: EtcdClient, after: Revision) -> Self {
        let (send, items) = mpsc::channel(QUEUE_CAPACITY);
        let reader = WatchReader {
            etcd,
            last_complete: after,
            sender: send,
        };
        let task = tokio::spawn(reader.run());
        Self { items, task }
    }

    /// The next item; `None` after [`Item::Compacted`].
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
    /// The last revision handed on whole.
    last_complete: Revision,
    sender: mpsc::Sender<WatchItem>,
}

/// Why a watch ended.
enum WatchEnd {
    /// Nobody listens.
    ReceiverDropped,
    /// There is nothing to go on with.
    Compacted,
    /// Open it again.
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
            if self.sender.send(WatchItem::Reopened { error: trouble }).await.is_err() {
                return;
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    async fn connect(&self) -> Result<(Client, WatchStream), EtcdError> {
        let client = self.etcd.own_client().await?;
        let stream = self.open_watch(&client, Some(self.last_complete.next())).await?;
        Ok((client, stream))
    }

    /// Watches everything from a revision on, or from the present.
    async fn open_watch(
        &self,
        client: &Client,
        from: Option<Revision>,
    ) -> Result<WatchStream, EtcdError> {
        let limit = self.etcd.config().request_timeout;
        let mut watch = client
            .watch_client()
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
        let options = WatchOptions::new()
            .with_from_key()
            .with_start_revision(from.map_or(0, |from| from.0))
            .with_fragment();
        let opening = watch.watch(vec![0u8], Some(options));
        crate::etcd::with_timeout(limit, EtcdCall::Watch, opening).await
    }

    async fn read_stream(&mut self, client: Arc<Client>, mut stream: WatchStream) -> WatchEnd {
        let (mut is_fresh, mut leap, mut rest) = (true, None, CatchUpBackoff::default());
        // What a watch that was ahead has given already.
        let mut kept = VecDeque::new();
        loop {
            let response = match kept.pop_front() {
                Some(response) => response,
                None => match next_response(&mut stream, &mut leap, &mut rest).await {
                    Ok(Some(response)) => response,
                    Ok(None) => return WatchEnd::Broken,
                    Err(error) => {
                        debug!(error = %error, revision = %self.last_complete, "the watch broke off");
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
            if std::mem::take(&mut is_fresh)
                && let Some(end) = self.check_start_compacted().await
            {
                return end;
            }
            if leap.is_none() && kept.is_empty() && rest.should_start(count_lag_revisions(&response)) {
                rest.start();
                leap = match self.open_watch(&client, None).await {
                    Ok(ahead) => Some(CatchUpWatch::new(ahead)),
                    Err(error) => {
                        debug!(error = %ErrorChain(&error), "no watch ahead, this one goes on");
                        None
                    }
                };
            }
            if !self.forward(response, &client).await {
                return WatchEnd::ReceiverDropped;
            }
            if let Some(reached) = leap.take_if(|leap| leap.is_reached(self.last_complete)) {
                debug!(revision = %self.last_complete, "the watch has caught up with the one ahead of it");
                (stream, kept) = reached.into_parts();
                let reopened = WatchItem::Reopened { error: None };
                if self.sender.send(reopened).await.is_err() {
                    return WatchEnd::ReceiverDropped;
                }
            }
        }
    }

    /// Some versions of etcd let a watch begin at the very revision that was compacted, and have dropped the deletes of
    /// that revision: what arrives looks whole and is not. Such a watch is one whose start is compacted.
    async fn check_start_compacted(&self) -> Option<WatchEnd> {
        let limit = self.etcd.config().request_timeout;
        match self.etcd.has_history_after(self.last_complete, limit).await {
            Ok(true) => None,
            Ok(false) => {
                let oldest = self.last_complete.next();
                let _ = self.sender.send(WatchItem::Compacted { oldest }).await; // nobody may listen any more
                Some(WatchEnd::Compacted)
            }
            Err(error) => {
                debug!(error = %ErrorChain(&error), revision = %self.last_complete, "whether history is missing is not known");
                Some(WatchEnd::Broken)
            }
        }
    }

    /// A watch ends because its start is compacted, or because the server wants it to.
    async fn on_canceled(&self, response: &WatchResponse) -> WatchEnd {
        let oldest = Revision(response.compact_revision());
        if oldest <= self.last_complete {
            warn!(revision = %self.last_complete, reason = response.cancel_reason(), "etcd ended the watch");
            return WatchEnd::Broken;
        }
        let _ = self.sender.send(WatchItem::Compacted { oldest }).await; // nobody may listen any more
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

/// The next response of a watch, while one ahead of it is listened to as well.
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
