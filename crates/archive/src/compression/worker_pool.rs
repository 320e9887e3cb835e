//! Runs jobs on several threads and returns results in order: job *n* runs on lane *n* mod *lanes*.
//!
//! Each lane has bounded input and output queues, which bounds the jobs in flight. Results are taken from the lanes
//! in turn, in the order of the jobs. Dropping closes the queues and joins the threads.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

/// Jobs per lane: one running, one queued, so that a lane stays busy while the owner reads input.
const QUEUE_DEPTH: usize = 2;

type WorkerFn<J, D> = Box<dyn FnMut(J) -> D + Send>;

/// A set of workers.
pub(super) enum WorkerPool<J, D> {
    /// One worker, on the caller's thread.
    Inline {
        work: WorkerFn<J, D>,
        done: VecDeque<D>,
    },
    /// Several workers, each on its own thread.
    Threads {
        workers: Vec<PoolWorker<J, D>>,
        submitted: usize,
        received: usize,
    },
}

/// A worker thread with its queues. The fields are `None` only during drop.
pub(super) struct PoolWorker<J, D> {
    jobs: Option<SyncSender<J>>,
    done: Option<Receiver<D>>,
    thread: Option<JoinHandle<()>>,
}

/// A worker thread panicked.
#[derive(Debug)]
pub(super) struct WorkerPanicked;

impl<J: Send + 'static, D: Send + 'static> WorkerPool<J, D> {
    /// Starts `threads` workers; `make` creates the function of each.
    pub(super) fn start<W>(threads: NonZeroUsize, make: impl Fn() -> W) -> io::Result<Self>
    where
        W: FnMut(J) -> D + Send + 'static,
    {
        if threads.get() == 1 {
            return Ok(Self::Inline {
                work: Box::new(make()),
                done: VecDeque::new(),
            });
        }
        let workers = (0..threads.get())
            .map(|_| PoolWorker::start(make()))
            .collect::<io::Result<_>>()?;
        Ok(Self::Threads {
            workers,
            submitted: 0,
            received: 0,
        })
    }

    /// Number of results not taken yet.
    pub(super) fn in_flight(&self) -> usize {
        match self {
            Self::Inline { done, .. } => done.len(),
            Self::Threads {
                submitted,
                received,
                ..
            } => submitted.wrapping_sub(*received),
        }
    }

    /// Returns true when a job can be submitted without waiting.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Inline { done, .. } => done.is_empty(),
            Self::Threads { workers, .. } => self.in_flight() < workers.len() * QUEUE_DEPTH,
        }
    }

    /// Submits a job to the next lane.
    pub(super) fn submit(&mut self, job: J) -> Result<(), WorkerPanicked> {
        match self {
            Self::Inline { work, done } => done.push_back(work(job)),
            Self::Threads {
                workers, submitted, ..
            } => {
                let lane = workers
                    .get(*submitted % workers.len())
                    .ok_or(WorkerPanicked)?;
                let jobs = lane.jobs.as_ref().ok_or(WorkerPanicked)?;
                jobs.send(job).map_err(|_| WorkerPanicked)?;
                *submitted = submitted.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// Waits for the oldest result; `None` when no job is in flight.
    pub(super) fn receive(&mut self) -> Result<Option<D>, WorkerPanicked> {
        if self.in_flight() == 0 {
            return Ok(None);
        }
        match self {
            Self::Inline { done, .. } => Ok(done.pop_front()),
            Self::Threads {
                workers, received, ..
            } => {
                let lane = workers
                    .get(*received % workers.len())
                    .ok_or(WorkerPanicked)?;
                let done = lane.done.as_ref().ok_or(WorkerPanicked)?;
                let result = done.recv().map_err(|_| WorkerPanicked)?;
                *received = received.wrapping_add(1);
                Ok(Some(result))
            }
        }
    }
}

impl<J: Send + 'static, D: Send + 'static> PoolWorker<J, D> {
    fn start(mut work: impl FnMut(J) -> D + Send + 'static) -> io::Result<Self> {
        let (jobs, todo) = sync_channel::<J>(QUEUE_DEPTH);
        let (finished, done) = sync_channel::<D>(QUEUE_DEPTH);
        let thread = Builder::new()
            .name("archive-lane".to_owned())
            .spawn(move || {
                while let Ok(job) = todo.recv() {
                    if finished.send(work(job)).is_err() {
                        return; // the owner was dropped
                    }
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            done: Some(done),
            thread: Some(thread),
        })
    }
}

impl<J, D> Drop for PoolWorker<J, D> {
    fn drop(&mut self) {
        // Close both queues first: the thread may block on either, and join would wait forever.
        drop(self.jobs.take());
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            // A panic was already returned as an error by `take`, or its result was never needed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    #[test]
    fn results_arrive_in_job_order_for_any_thread_count() {
        for count in [1, 2, 3, 7] {
            let mut lanes = WorkerPool::start(threads(count), || |n: u64| n * n).unwrap();
            let mut squares = Vec::new();
            for n in 0..500_u64 {
                while !lanes.has_room() {
                    squares.push(lanes.receive().unwrap().unwrap());
                }
                lanes.submit(n).unwrap();
                assert!(lanes.in_flight() <= count * QUEUE_DEPTH);
            }
            while let Some(square) = lanes.receive().unwrap() {
                squares.push(square);
            }
            assert_eq!(squares, (0..500).map(|n| n * n).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn drop_with_jobs_in_flight_neither_hangs_nor_leaks_a_thread() {
        let alive = std::sync::Arc::new(());
        for _ in 0..50 {
            let guard = alive.clone();
            let work = move || {
                let guard = guard.clone();
                move |n: u64| {
                    assert!(std::sync::Arc::strong_count(&guard) > 1);
                    vec![0_u8; usize::try_from(n).unwrap()]
                }
            };
            let mut lanes = WorkerPool::start(threads(3), work).unwrap();
            while lanes.has_room() {
                lanes.submit(100_000).unwrap();
            }
        }
        assert_eq!(std::sync::Arc::strong_count(&alive), 1);
    }

    #[test]
    fn worker_panic_is_an_error_not_a_hang() {
        let mut lanes =
            WorkerPool::start(threads(2), || |n: u64| assert!(n < 3, "on purpose")).unwrap();
        for n in 0..4 {
            lanes.submit(n).unwrap();
        }
        let outcomes: Vec<bool> = (0..4).map(|_| lanes.receive().is_ok()).collect();
        assert_eq!(outcomes, [true, true, true, false]);
    }
}
