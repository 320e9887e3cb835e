//! Verifies etcd data directories, creates new ones, and puts them in the place of old ones.
//!
//! ```text
//! --initial-cluster, token → Membership (ids) → bootstrap (wal, snap) ┐
//!                                     database, written elsewhere ────┴→ Staging → commit → <target>
//!                                                                                   old → <target>.before-<time>
//!
//! <data dir> → volume guard → clean stop note? ─ still holds → verify (Sanity) ┬→ Report
//!              whose volume                    └ otherwise  → verify (Full) ───┘  verdict, faults, facts
//! ```
//!
//! **Comes in**: who is to be a member, and a directory that was built in a [`Staging`]; or a directory nobody
//! vouches for. **Goes out**: a data directory that etcd 3.4 and newer boots, under the target's name; or a
//! [`Report`] that says whether etcd can start on it, what is wrong and where, and what it holds.
//!
//! **Holds**: nothing is destroyed, the old directory is kept under another name; nothing is touched while
//! another process holds the old database; a verification writes nothing, and damage is its result, never its
//! failure. **Does not do**: write the database itself, repair, or compare with a backup.
//!
//! **After a crash** at any moment the target is the old directory or the new one, whole; where the file
//! system cannot exchange two names at once it may be missing, with both beside it, until [`recover`] runs. A
//! clean stop note is good for one start, so after a crash there is none.
//!
//! Layout: `docs/internals/format/datadir.md`.

#![deny(clippy::indexing_slicing, clippy::cast_possible_truncation)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, reason = "a test may fail by panicking")
)]

mod bootstrap;
mod clean_stop;
mod durable;
mod lock;
mod membership;
mod peer_url;
mod swap;
mod verify;
mod volume_fence;
mod volume_guard;

pub use bootstrap::{BootstrapError, BootstrapInfo, write_raft_files};
pub use clean_stop::{CleanStop, CleanStopError, WalEnd};
pub use lock::{DatabaseLock, LockError, hold, is_live};
pub use membership::{InitialCluster, ListedMember, Member, Membership, MembershipError};
pub use peer_url::{PeerUrl, UrlError, parse_peer_urls};
pub use swap::{Aside, Committed, Recovery, Staging, SwapError, put_aside, recover, set_aside};
pub use verify::{
    AlarmFacts, Depth, DirFacts, DirVerdict, Fault, FaultKind, Finding, MemberFacts, Report,
    VerifyError, Warning, WarningKind, verify,
};
pub use volume_fence::{Fence, FenceEpoch, FenceError};
pub use volume_guard::{Guard, GuardError, check_guard, write_guard};
