//! A tail as the session sees it: started, asked, released, ended.

use std::time::Duration;

use mainstay_archive::compression::Compression;
use mainstay_ids::Revision;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::gapless::Gap;
use super::ship::Shipper;
use super::task::Worker;
use crate::ask::AskError;
use crate::backoff::Backoff;
use crate::election::FarewellNote;
use crate::etcd::Etcd;
use crate::metrics::Metrics;
use crate::state::{Board, Stored};

/// What is asked of the tail may wait in line; there are only a few who ask.
const LINE: usize = 16;

/// How deltas are made.
#[derive(Clone, Debug)]
pub struct TailConfig {
    /// Between two deltas; `None` writes them on demand and by size only.
    pub period: Option<Duration>,
    /// Bytes of text after which a delta is stored at once.
    pub limit_bytes: u64,
    /// How objects are compressed.
    pub compression: Compression,
    /// Between two attempts to store.
    pub backoff: Backoff,
}

/// What the session must know.
#[derive(Debug)]
pub enum Notice {
    /// A delta is in the store.
    Stored(Stored),
    /// Events are missing: a full snapshot is due. Nothing is captured any more.
    Gap(Gap),
    /// The store reaches further than it did: begin anew behind its end.
    Overtaken,
}

/// A running tail.
pub struct Tail {
    line: mpsc::Sender<Asked>,
    held: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// What a tail is made of.
pub struct Parts {
    /// The etcd to follow.
    pub etcd: Etcd,
    /// How deltas are made.
    pub config: TailConfig,
    /// Where they go.
    pub shipper: Shipper,
    /// Where the position is written.
    pub board: Board,
    /// What is measured.
    pub metrics: Metrics,
    /// Whom to tell.
    pub notices: mpsc::Sender<Notice>,
}

impl Tail {
    /// Follows etcd after a revision. While `is_held`, nothing is stored: a delta needs a full snapshot to stand on.
    pub fn start(
        parts: Parts,
        after: Revision,
        is_held: bool,
        stop: CancellationToken,
        farewell: FarewellNote,
    ) -> Self {
        let (line, asking) = mpsc::channel(LINE);
        let (grip, held) = watch::channel(is_held);
        let worker = Worker::new(parts, after, asking, held);
        let task = tokio::spawn(worker.run(stop, farewell));
        Self {
            line,
            held: grip,
            task,
        }
    }

    /// A handle to ask by, for tasks beside the session.
    pub fn flusher(&self) -> Flusher {
        Flusher(self.line.clone())
    }

    /// A handle for whoever completes a full snapshot; `None` while deltas are held back, which wait for that very one.
    pub fn flusher_beside_a_full(&self) -> Option<Flusher> {
        let is_held = *self.held.borrow();
        (!is_held).then(|| self.flusher())
    }

    /// There is a full snapshot now: deltas may be stored.
    pub fn release(&self) {
        self.held.send_replace(false);
    }

    /// Waits until the tail has ended; it must have been told to.
    pub async fn ended(self) {
        if let Err(error) = self.task.await {
            warn!(error = %error, "the tail did not end in an orderly way");
        }
    }
}

/// Asks a tail to store what it has.
pub struct Flusher(mpsc::Sender<Asked>);

impl Flusher {
    /// Stores everything up to a revision, once it has arrived. `None` when there was nothing to store.
    pub async fn flush(self, through: Revision) -> Result<Option<Stored>, AskError> {
        let Flushing(answer) = self.request(through).await;
        answer.await.unwrap_or(Err(AskError::Ended))
    }

    /// Asks, and leaves it to the caller how long to wait for the answer.
    pub async fn request(self, through: Revision) -> Flushing {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.send(Asked { through, reply }).await; // a tail that ended stores nothing
        Flushing(answer)
    }
}

/// A delta that was asked for.
pub struct Flushing(oneshot::Receiver<Result<Option<Stored>, AskError>>);

impl Flushing {
    /// Waits until it is stored, or is not to be had, but not for ever.
    pub async fn settle(self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.0).await; // whoever stores it tells of its troubles
    }
}

/// Who waits for a delta.
pub(super) struct Asked {
    pub(super) through: Revision,
    pub(super) reply: oneshot::Sender<Result<Option<Stored>, AskError>>,
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn whoever_asked_for_a_delta_goes_on_when_it_is_stored() {
        let (send, mut tail) = mpsc::channel(1);
        let flushing = Flusher(send).request(Revision(7)).await;
        let asked = tail.recv().await.unwrap();
        assert_eq!(asked.through, Revision(7));
        let begun = Instant::now();
        let storing = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            asked.reply.send(Ok(None)).ok().unwrap();
        };
        tokio::join!(flushing.settle(PATIENCE), storing);
        assert_eq!(begun.elapsed().as_secs(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_tail_that_ended_nor_for_ever() {
        let begun = Instant::now();
        let (send, tail) = mpsc::channel(1);
        drop(tail);
        Flusher(send)
            .request(Revision(7))
            .await
            .settle(PATIENCE)
            .await;
        assert_eq!(begun.elapsed(), Duration::ZERO);

        let (send, _silent) = mpsc::channel(1);
        Flusher(send)
            .request(Revision(7))
            .await
            .settle(PATIENCE)
            .await;
        assert_eq!(begun.elapsed().as_secs(), PATIENCE.as_secs());
    }
}
