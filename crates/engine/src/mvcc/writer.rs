//! Group commit: writes that arrive while the store syncs share the next sync.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use super::core::{Core, Job, Reply};
use crate::error::EngineError;
use crate::row_store::StorageError;

/// Most writes in one commit: bounds its memory and how long a failed one is.
const MOST_JOBS: usize = 512;
/// Writes that wait for a commit. Beyond it, callers wait to be queued.
const QUEUE: usize = 4096;

type Queued = (Job, oneshot::Sender<Result<Reply, EngineError>>);

/// How writes reach the store.
#[derive(Debug)]
pub(super) enum Writer {
    /// Commits do not wait: the caller applies its own write.
    Inline,
    /// A thread applies them in batches.
    Thread {
        queue: Option<mpsc::Sender<Queued>>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Writer {
    pub(super) fn start(core: &Arc<Core>) -> Result<Self, EngineError> {
        if !core.rows.is_blocking() || !core.options.capabilities.is_writable {
            return Ok(Self::Inline);
        }
        let (queue, jobs) = mpsc::channel(QUEUE);
        let core = Arc::downgrade(core);
        let thread = std::thread::Builder::new()
            .name("engine-writer".to_owned())
            .spawn(move || run(&core, jobs))
            .map_err(|source| {
                EngineError::Storage(StorageError::new("start the writer", source))
            })?;
        Ok(Self::Thread {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    pub(super) async fn submit(&self, core: &Core, job: Job) -> Result<Reply, EngineError> {
        let Self::Thread { queue, .. } = self else {
            return core
                .apply(vec![job])
                .pop()
                .unwrap_or(Err(EngineError::Closed));
        };
        let queue = queue.as_ref().ok_or(EngineError::Closed)?;
        let (reply, answer) = oneshot::channel();
        queue
            .send((job, reply))
            .await
            .map_err(|_| EngineError::Closed)?;
        answer.await.unwrap_or(Err(EngineError::Closed))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Self::Thread { queue, thread } = self {
            drop(queue.take());
            // The thread holds the store: whoever opens it again must find it free.
            if let Some(thread) = thread.take()
                && thread.join().is_err()
            {
                tracing::error!("the writer ended with a panic");
            }
        }
    }
}

fn run(core: &Weak<Core>, mut jobs: mpsc::Receiver<Queued>) {
    while let Some(first) = jobs.blocking_recv() {
        let mut queued = vec![first];
        while queued.len() < MOST_JOBS
            && let Ok(next) = jobs.try_recv()
        {
            queued.push(next);
        }
        let (work, replies): (Vec<_>, Vec<_>) = queued.into_iter().unzip();
        let Some(core) = core.upgrade() else {
            return;
        };
        for (reply, result) in replies.into_iter().zip(core.apply(work)) {
            // A caller that went away leaves the outcome of its write unknown to itself only.
            let _ = reply.send(result);
        }
    }
}
