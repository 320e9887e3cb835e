//! Few heaps instead of many.
//!
//! The allocator of the GNU C library gives threads heaps of their own, and what was freed in one of them is not used
//! by the others. Full snapshots are compressed by threads that come and go: with a heap each, the process grows with
//! every snapshot although nothing is kept. How many heaps there are is read from the environment, once, before the
//! program begins; so the program sets it and begins again, as the same process.

use std::os::unix::process::CommandExt;
use std::process::Command;

const VARIABLE: &str = "MALLOC_ARENA_MAX";
/// One for those who allocate, one for those who would wait for it.
const HEAPS: &str = "2";

/// Begins the program again with few heaps, unless somebody has decided how many. Where that is not possible it goes on
/// with many.
pub fn begin_with_few() {
    let is_decided = std::env::vars_os().any(|(name, _)| name == VARIABLE);
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
        .env(VARIABLE, HEAPS)
        .exec();
}
