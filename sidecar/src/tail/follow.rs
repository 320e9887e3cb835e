//! One watch on everything, opened again behind the last whole revision whenever it breaks.

mod leap;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, WatchOptions, WatchResponse, WatchStream};
use mainstay_ids::Revision;
use mainstay_telemetry::Chain;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use self::leap::{Leap, Rest, behind};
use crate::etcd::{Etcd, EtcdError, Step};

/// Responses read ahead; with fragments each is about as large as etcd's request limit.
const AHEAD: usize = 4;
/// One event may be as large as etcd's request limit, which operators raise.
const LARGEST_MESSAGE: usize = 512 << 20;
/// Between two attempts to open the watch.
const PAUSE: Duration = Duration::from_millis(500);

/// What the watch gives.
pub enum Item {
    /// Events; when `is_whole`, the last revision in it is complete.
    Events {
        /// The events.
        events: Vec<etcd_client::Event>,
        /// Whether more events of the last revision may follow.
        is_whole: bool,
        /// A client of the connection they came by.
        client: Arc<Client>,
    },
    /// The watch broke off and is opened again, or another one takes its place: revisions not whole yet arrive anew.
    Reopened {
        /// Why it could not be opened, if it could not.
        trouble: Option<EtcdError>,
    },
    /// etcd has compacted what was to be watched.
    Compacted {
        /// The oldest revision etcd still has.
        oldest: Revision,
    },
}

/// A watch that is kept open by a task of its own. It ends when this is dropped.
pub struct Follow {
    items: mpsc::Receiver<Item>,
    task: tokio::task::JoinHandle<()>,
}

impl Follow {
    /// Watches everything after a revision.
    pub fn start(etcd: Etcd, after: Revision) -> Self {
        let (send, items) = mpsc::channel(AHEAD);
        let reader = Reader {
            etcd,
            whole: after,
            send,
        };
        let task = tokio::spawn(reader.run());
        Self { items, task }
    }

    /// The next item; `None` after [`Item::Compacted`].
    pub async fn next(&mut self) -> Option<Item> {
        self.items.recv().await
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Reader {
    etcd: Etcd,
    /// The last revision handed on whole.
    whole: Revision,
    send: mpsc::Sender<Item>,
}

/// Why a watch ended.
enum End {
    /// Nobody listens.
    Unwanted,
    /// There is nothing to go on with.
    Compacted,
    /// Open it again.
    Broken,
}

impl Reader {
    async fn run(mut self) {
        loop {
            let trouble = match self.open().await {
                Ok((client, stream)) => match self.read(Arc::new(client), stream).await {
                    End::Unwanted | End::Compacted => return,
                    End::Broken => None,
                },
                Err(error) => Some(error),
            };
            if self.send.send(Item::Reopened { trouble }).await.is_err() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn open(&self) -> Result<(Client, WatchStream), EtcdError> {
        let client = self.etcd.own().await?;
        let stream = self.watch(&client, Some(self.whole.next())).await?;
        Ok((client, stream))
    }

    /// Watches everything from a revision on, or from the present.
    async fn watch(
        &self,
        client: &Client,
        from: Option<Revision>,
    ) -> Result<WatchStream, EtcdError> {
        let limit = self.etcd.config().question_timeout;
        let mut watch = client
            .watch_client()
            .max_decoding_message_size(LARGEST_MESSAGE);
        let options = WatchOptions::new()
            .with_from_key()
            .with_start_revision(from.map_or(0, |from| from.0))
            .with_fragment();
        let opening = watch.watch(vec![0u8], Some(options));
        crate::etcd::within(limit, Step::Watch, opening).await
    }

    async fn read(&mut self, client: Arc<Client>, mut stream: WatchStream) -> End {
        let (mut is_fresh, mut leap, mut rest) = (true, None, Rest::default());
        // What a watch that was ahead has given already.
        let mut kept = VecDeque::new();
        loop {
            let response = match kept.pop_front() {
                Some(response) => response,
                None => match next(&mut stream, &mut leap, &mut rest).await {
                    Ok(Some(response)) => response,
                    Ok(None) => return End::Broken,
                    Err(error) => {
                        debug!(error = %error, revision = %self.whole, "the watch broke off");
                        return End::Broken;
                    }
                },
            };
            if response.canceled() {
                return self.canceled(&response).await;
            }
            if response.events().is_empty() {
                continue;
            }
            if std::mem::take(&mut is_fresh)
                && let Some(end) = self.begins_too_late().await
            {
                return end;
            }
            if leap.is_none() && kept.is_empty() && rest.allows(behind(&response)) {
                rest.begin();
                leap = match self.watch(&client, None).await {
                    Ok(ahead) => Some(Leap::new(ahead)),
                    Err(error) => {
                        debug!(error = %Chain(&error), "no watch ahead, this one goes on");
                        None
                    }
                };
            }
            if !self.hand_on(response, &client).await {
                return End::Unwanted;
            }
            if let Some(reached) = leap.take_if(|leap| leap.is_reached(self.whole)) {
                debug!(revision = %self.whole, "the watch has caught up with the one ahead of it");
                (stream, kept) = reached.land();
                let reopened = Item::Reopened { trouble: None };
                if self.send.send(reopened).await.is_err() {
                    return End::Unwanted;
                }
            }
        }
    }

    /// Some versions of etcd let a watch begin at the very revision that was compacted, and have dropped the deletes of
    /// that revision: what arrives looks whole and is not. Such a watch is one whose start is compacted.
    async fn begins_too_late(&self) -> Option<End> {
        let limit = self.etcd.config().question_timeout;
        match self.etcd.has_history_after(self.whole, limit).await {
            Ok(true) => None,
            Ok(false) => {
                let oldest = self.whole.next();
                let _ = self.send.send(Item::Compacted { oldest }).await; // nobody may listen any more
                Some(End::Compacted)
            }
            Err(error) => {
                debug!(error = %Chain(&error), revision = %self.whole, "whether history is missing is not known");
                Some(End::Broken)
            }
        }
    }

    /// A watch ends because its start is compacted, or because the server wants it to.
    async fn canceled(&self, response: &WatchResponse) -> End {
        let oldest = Revision(response.compact_revision());
        if oldest <= self.whole {
            warn!(revision = %self.whole, reason = response.cancel_reason(), "etcd ended the watch");
            return End::Broken;
        }
        let _ = self.send.send(Item::Compacted { oldest }).await; // nobody may listen any more
        End::Compacted
    }

    async fn hand_on(&mut self, response: WatchResponse, client: &Arc<Client>) -> bool {
        let is_whole = !response.0.fragment;
        let events: Vec<etcd_client::Event> = response
            .0
            .events
            .into_iter()
            .map(etcd_client::Event)
            .collect();
        let last = events.iter().rev().find_map(|event| event.kv());
        if let Some(last) = last.map(|kv| Revision(kv.mod_revision())) {
            let whole = if is_whole { last } else { last.previous() };
            self.whole = self.whole.max(whole);
        }
        let item = Item::Events {
            events,
            is_whole,
            client: Arc::clone(client),
        };
        self.send.send(item).await.is_ok()
    }
}

/// The next response of a watch, while one ahead of it is listened to as well.
async fn next(
    stream: &mut WatchStream,
    leap: &mut Option<Leap>,
    rest: &mut Rest,
) -> Result<Option<WatchResponse>, etcd_client::Error> {
    loop {
        let Some(ahead) = leap else {
            return stream.message().await;
        };
        tokio::select! {
            response = stream.message() => return response,
            is_useful = ahead.keep() => {
                if !is_useful {
                    *leap = None;
                    rest.begin();
                }
            }
        }
    }
}
