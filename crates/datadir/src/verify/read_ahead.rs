//! Has the file in memory before the walk over it asks for it.
//!
//! A walk follows the tree, whose pages lie anywhere in a file that has been written to for a while, so the system
//! cannot guess what comes next. Asking for the file front to back, on a thread of its own, turns that into the reads a
//! disk is best at.

use std::fs::File;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{Advice, fadvise};

/// Bytes asked for at a time.
const WINDOW_BYTES: NonZeroU64 = NonZeroU64::new(4 << 20).expect("not zero");

/// Files above this are left to the walk: what is read ahead would be gone before it is needed.
const MAX_FILE_BYTES: u64 = 8 << 30;

/// Runs `work` while the first `bytes` of `file` are fetched. Failing to fetch is no error: it only costs time.
pub(super) fn run_with_read_ahead<T>(file: &File, bytes: u64, work: impl FnOnce() -> T) -> T {
    if bytes > MAX_FILE_BYTES {
        return work();
    }
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut offset = 0;
            while offset < bytes && !is_done.load(Ordering::Relaxed) {
                if fadvise(file, offset, Some(WINDOW_BYTES), Advice::WillNeed).is_err() {
                    return;
                }
                offset += WINDOW_BYTES.get();
            }
        });
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        result
    })
}
