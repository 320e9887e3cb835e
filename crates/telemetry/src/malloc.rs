//! Limits glibc malloc to one arena and moves large buffers to mmap, so that memory does not grow without use.
//!
//! glibc gives threads their own arenas, and memory freed in one arena is not reused by others. The sidecar compresses
//! full snapshots in short-lived threads: with one arena each, the process grows with every snapshot. The controller
//! reconciles on changing threads, with the same effect. Large buffers fragment an arena; mmapped ones are returned to the
//! system when freed. glibc reads these settings from the environment once, before `main`, so the program sets them and
//! executes itself again in the same process.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Number of arenas. If the variable is set, the operator or the first start has decided already.
const ARENA_MAX_VAR: &str = "MALLOC_ARENA_MAX";
/// Settings of glibc malloc: number of arenas, size in bytes from which a buffer is mmapped, free bytes at the top of the
/// heap from which it is trimmed.
const MALLOC_SETTINGS: [(&str, &str); 3] = [
    (ARENA_MAX_VAR, "1"),
    ("MALLOC_MMAP_THRESHOLD_", "262144"),
    ("MALLOC_TRIM_THRESHOLD_", "1048576"),
];

/// Executes the program again with one malloc arena, unless `MALLOC_ARENA_MAX` is set. If that fails, the program
/// continues with the default number of arenas.
pub fn reexec_with_one_arena() {
    let is_decided = std::env::vars_os().any(|(name, _)| name == ARENA_MAX_VAR);
    let mut arguments = std::env::args_os();
    let (Some(name), Ok(program)) = (arguments.next(), std::env::current_exe()) else {
        return;
    };
    // Without this check the program would execute itself forever. musl has no arenas.
    if is_decided || !cfg!(target_env = "gnu") {
        return;
    }
    // exec() returns only on failure.
    let _ = Command::new(program)
        .arg0(name)
        .args(arguments)
        .envs(MALLOC_SETTINGS)
        .exec();
}
