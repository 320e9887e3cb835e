//! Creates etcd data directories and puts them in the place of old ones.
//!
//! ```text
//! --initial-cluster, token → Membership (ids) → bootstrap (wal, snap) ┐
//!                                     database, written elsewhere ────┴→ Staging → commit → <target>
//!                                                                                   old → <target>.before-<time>
//! ```
//!
//! **Comes in**: who is to be a member, and a directory that was built in a [`Staging`]. **Goes out**: a data
//! directory that etcd 3.4 and newer boots, under the target's name.
//!
//! **Holds**: nothing is destroyed, the old directory is kept under another name; nothing is touched while
//! another process holds the old database. **Does not do**: write the database itself.
//!
//! **After a crash** at any moment the target is the old directory or the new one, whole; where the file
//! system cannot exchange two names at once it may be missing, with both beside it, until [`recover`] runs.

#![deny(clippy::indexing_slicing, clippy::cast_possible_truncation)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, reason = "a test may fail by panicking")
)]

mod bootstrap;
mod durable;
mod lock;
mod membership;
mod peer_url;
mod swap;

pub use bootstrap::{BootstrapError, BootstrapInfo, write_raft_files};
pub use lock::{DatabaseLock, LockError, hold, is_live};
pub use membership::{InitialCluster, ListedMember, Member, Membership, MembershipError};
pub use peer_url::{PeerUrl, UrlError, parse_peer_urls};
pub use swap::{Committed, Recovery, Staging, SwapError, recover};
