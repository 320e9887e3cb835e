//! One heap instead of many, and large buffers beside it.
//!
//! The allocator of the GNU C library gives threads heaps of their own, and what was freed in one of them is not used
//! by the others. The sidecar compresses full snapshots with threads that come and go: with a heap each, the process grows
//! with every snapshot although nothing is kept. The controller has a pass here and a pass there. Large buffers in a heap leave holes that nothing fits into; outside of it
//! they are given back when they are freed. All this is read from the environment, once, before the program begins; so
//! the program sets it and begins again, as the same process.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// How many heaps there are. It also tells whether somebody has decided already.
const ARENA_MAX_VAR: &str = "MALLOC_ARENA_MAX";
/// What the allocator is told: heaps, bytes from which a buffer is kept outside of them, free bytes at the end of a heap
/// from which they are given back.
const MALLOC_SETTINGS: [(&str, &str); 3] = [
    (ARENA_MAX_VAR, "1"),
    ("MALLOC_MMAP_THRESHOLD_", "262144"),
    ("MALLOC_TRIM_THRESHOLD_", "1048576"),
];

/// Begins the program again with one heap, unless somebody has decided how many. Where that is not possible it goes on
/// with many.
pub fn reexec_with_one_arena() {
    let is_decided = std::env::vars_os().any(|(name, _)| name == ARENA_MAX_VAR);
    let mut line = std::env::args_os();
    let (Some(name), Ok(program)) = (line.next(), std::env::current_exe()) else {
        return;
    };
    if is_decided || !cfg!(target_env = "gnu") {
        return;
    }
    // Returns only when it fails.
    let _ = Command::new(program)
        .arg0(name)
        .args(line)
        .envs(MALLOC_SETTINGS)
        .exec();
}
