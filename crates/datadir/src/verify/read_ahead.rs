//! Reads the file into the page cache ahead of the walk.
//!
//! The walk follows the B+tree, whose pages are scattered over the file, so the kernel's read-ahead does not
//! help. Requesting the file front to back on a separate thread turns random reads into sequential ones.

use std::fs::File;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{Advice, fadvise};

/// Bytes per request.
const WINDOW_BYTES: NonZeroU64 = NonZeroU64::new(4 << 20).expect("not zero");

/// No read-ahead for larger files: pages would be evicted from the cache before the walk needs them.
const MAX_FILE_BYTES: u64 = 8 << 30;

/// Runs `work` while the first `bytes` of `file` are read ahead. A failure only costs time.
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
