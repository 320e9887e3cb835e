//! One watch stream. A single task reads the client, reads the engine and sends, so the order of responses is the order
//! of decisions: progress that is decided after events is sent after them.

use std::collections::{HashMap, HashSet};
use std::future::pending;

use mainstay_engine::{KeyRange, WatchInstance, WatchMessage, WatchOptions};
use mainstay_ids::Revision;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tonic::{Status, Streaming};

use super::fragment::fragments;
use super::respond::{Filters, event};
use crate::error::{EtcdError, engine_error};
use crate::front::{Front, MAX_REQUEST_BYTES};
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};

/// ID of responses that belong to no watch, or to all of them.
const NO_WATCH: i64 = -1;

/// The client is gone.
struct Gone;

#[derive(Clone, Copy)]
struct Shape {
    filters: Filters,
    fragment: bool,
    progress_notify: bool,
}

pub(super) struct WatchStream {
    front: Front,
    out: mpsc::Sender<Result<WatchResponse, Status>>,
    watches: WatchInstance,
    shapes: HashMap<i64, Shape>,
    /// Watches that sent something since the last progress tick.
    active: HashSet<i64>,
    /// A progress request waits until every watch is synced.
    wants_progress: bool,
}

impl WatchStream {
    pub(super) fn new(front: Front, out: mpsc::Sender<Result<WatchResponse, Status>>) -> Self {
        let watches = WatchInstance::create(front.engine.clone());
        Self {
            front,
            out,
            watches,
            shapes: HashMap::new(),
            active: HashSet::new(),
            wants_progress: false,
        }
    }

    pub(super) async fn run(mut self, mut requests: Streaming<WatchRequest>) {
        let drain = self.front.drain.clone();
        let mut ticks = self.progress_ticks();
        let mut is_open = true;
        loop {
            let next_request = async {
                if is_open {
                    requests.message().await
                } else {
                    pending().await
                }
            };
            let handled = tokio::select! {
                request = next_request => match request {
                    Ok(Some(request)) => self.handle(request).await,
                    // The client sends no more, but may still read.
                    Ok(None) => { is_open = false; Ok(()) }
                    Err(_) => return,
                },
                message = self.watches.next() => self.deliver(message).await,
                _ = ticks.tick() => self.notify_progress().await,
                () = self.out.closed() => return,
                () = drain.cancelled() => {
                    // A full queue belongs to a client that does not read; the end of the stream reaches it anyway.
                    let _ = self.out.try_send(Err(EtcdError::STOPPED.status()));
                    return;
                }
            };
            if handled.is_err() {
                return;
            }
        }
    }

    fn progress_ticks(&self) -> Interval {
        let interval = self.front.options.progress_interval;
        let mut ticks = interval_at(Instant::now() + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    }

    async fn send(&self, response: WatchResponse) -> Result<(), Gone> {
        self.out.send(Ok(response)).await.map_err(|_| Gone)
    }

    fn response(&self, id: i64, revision: Revision) -> WatchResponse {
        WatchResponse {
            header: self.front.header(revision),
            watch_id: id,
            ..WatchResponse::default()
        }
    }

    async fn handle(&mut self, request: WatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create).await,
            Some(RequestUnion::CancelRequest(cancel)) => self.cancel(cancel.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => {
                self.wants_progress = true;
                self.answer_progress().await
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: WatchCreateRequest) -> Result<(), Gone> {
        let shape = Shape {
            filters: Filters::of(&request),
            fragment: request.fragment,
            progress_notify: request.progress_notify,
        };
        // No key is every key; only a range end of one zero byte is unbounded.
        let key = if request.key.is_empty() {
            bytes::Bytes::from_static(&[0])
        } else {
            request.key
        };
        let options = WatchOptions {
            range: KeyRange::from_wire(key, request.range_end),
            start: (request.start_revision > 0).then_some(Revision(request.start_revision)),
            wants_previous: request.prev_kv,
        };
        let response = match self.watches.register_key_watch(request.watch_id, options) {
            Ok((id, visible)) => {
                self.shapes.insert(id, shape);
                WatchResponse {
                    created: true,
                    ..self.response(id, visible)
                }
            }
            Err(refusal) => WatchResponse {
                created: true,
                canceled: true,
                cancel_reason: refusal.to_string(),
                ..self.response(NO_WATCH, self.front.engine.hub().visible())
            },
        };
        self.send(response).await
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Gone> {
        if !self.watches.cancel_key_watch(id) {
            return Ok(());
        }
        self.forget(id);
        let response = WatchResponse {
            canceled: true,
            ..self.response(id, self.front.engine.hub().visible())
        };
        self.send(response).await?;
        self.answer_progress().await
    }

    fn forget(&mut self, id: i64) {
        self.shapes.remove(&id);
        self.active.remove(&id);
    }

    async fn deliver(&mut self, message: WatchMessage) -> Result<(), Gone> {
        match message {
            WatchMessage::Events {
                id,
                reached,
                events,
            } => {
                let Some(shape) = self.shapes.get(&id).copied() else {
                    return Ok(());
                };
                let events = events.into_iter().filter(|found| shape.filters.pass(found));
                let response = WatchResponse {
                    events: events.map(event).collect(),
                    ..self.response(id, reached)
                };
                if !response.events.is_empty() {
                    self.active.insert(id);
                    let limit = if shape.fragment {
                        MAX_REQUEST_BYTES
                    } else {
                        usize::MAX
                    };
                    for part in fragments(response, limit) {
                        self.send(part).await?;
                    }
                }
            }
            WatchMessage::Advanced { .. } => {}
            WatchMessage::Compacted { id, oldest } => {
                self.forget(id);
                // etcd sends no revision here.
                let response = WatchResponse {
                    canceled: true,
                    compact_revision: oldest.0,
                    ..self.response(id, Revision(0))
                };
                self.send(response).await?;
            }
            WatchMessage::Failed { id, error } => {
                self.forget(id);
                let response = WatchResponse {
                    canceled: true,
                    cancel_reason: engine_error(&error).message().to_owned(),
                    ..self.response(id, Revision(0))
                };
                self.send(response).await?;
            }
        }
        self.answer_progress().await
    }

    /// Answers a progress request once nothing before the revision is undelivered.
    async fn answer_progress(&mut self) -> Result<(), Gone> {
        if !self.wants_progress {
            return Ok(());
        }
        let Some(revision) = self.watches.synced() else {
            return Ok(());
        };
        self.wants_progress = false;
        self.send(self.response(NO_WATCH, revision)).await
    }

    async fn notify_progress(&mut self) -> Result<(), Gone> {
        let idle: Vec<i64> = self
            .shapes
            .iter()
            .filter(|(id, shape)| shape.progress_notify && !self.active.contains(*id))
            .map(|(id, _)| *id)
            .collect();
        self.active.clear();
        for id in idle {
            if let Some(revision) = self.watches.synced_key_watch(id) {
                self.send(self.response(id, revision)).await?;
            }
        }
        Ok(())
    }
}
