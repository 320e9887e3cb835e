//! Verifies etcd data directories, creates new ones, and replaces old ones.
//!
//! ```text
//! --initial-cluster, token → Membership (ids) → bootstrap (wal, snap) ┐
//!                                     database, written elsewhere ────┴→ Staging → commit → <target>
//!                                                                                   old → <target>.before-<time>
//!
//! <data dir> → volume guard → clean-stop record? ─ valid     → verify (Sanity) ┬→ Report
//!              namespace                         └ otherwise → verify (Full) ──┘  verdict, faults, facts
//! ```
//!
//! **Input**: the members of a new cluster and a directory built in a [`StagingDir`]; or a directory to
//! verify. **Output**: a data directory on which etcd 3.4 and newer starts, under the target's name; or a
//! [`DirReport`]: whether etcd can start, the damage with its location, and the content.
//!
//! **Invariants**: no data is deleted, the previous data directory is kept under another name; nothing is
//! changed while another process holds the old database; a verification writes nothing and reports damage
//! as its result, not as an error. **Out of scope**: writing the database, repair, comparison with a backup.
//!
//! **After a crash** at any point the target is either the complete old or the complete new directory. If the
//! file system cannot exchange two names atomically, the target may be missing, with both directories beside
//! it, until [`recover_swap`] runs. A clean-stop record is valid for one start, so a crash leaves none.
//!
//! Layout: `docs/internals/format/datadir.md`.

#![deny(clippy::indexing_slicing, clippy::cast_possible_truncation)]
#![cfg_attr(
    test,
    allow(clippy::indexing_slicing, reason = "a test may fail by panicking")
)]

mod bootstrap;
mod clean_stop;
mod durable_fs;
mod lock;
mod membership;
mod peer_url;
mod swap;
mod verify;
mod volume_fence;
mod volume_guard;

pub use bootstrap::{BootstrapError, BootstrapInfo, write_raft_files};
pub use clean_stop::{CleanStop, CleanStopError, WalEnd};
pub use lock::{DatabaseLock, LockError, is_in_use, lock_database};
pub use membership::{ClusterMembership, InitialCluster, ListedMember, Member, MembershipError};
pub use peer_url::{PeerUrl, PeerUrlError, parse_peer_urls};
pub use swap::{
    CommittedSwap, PreviousDataDir, StagingDir, SwapError, SwapRecovery, list_previous_data_dirs,
    recover_swap, rename_to_previous,
};
pub use verify::{
    AlarmFacts, Depth, DirFacts, DirFault, DirFinding, DirReport, DirVerdict, DirWarning,
    FaultKind, MemberFacts, VerifyError, WarningKind, verify,
};
pub use volume_fence::{FenceEpoch, VolumeFence, VolumeFenceError};
pub use volume_guard::{GuardError, GuardStatus, check_volume_guard, write_volume_guard};
