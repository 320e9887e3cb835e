//! Images for a cluster without a registry.
//!
//! ```text
//! programs of this machine ─ linked ─► files ─ archive ─► docker-archive ─ ctr import ─► containerd
//! ```
//!
//! **Comes in**: programs, by their paths. **Goes out**: archives that hold each program with the libraries and
//! the loader it is linked to, and nothing else: no shell, no package manager. **Holds**: the same files
//! make the same archive.

mod archive;
mod catalogue;
mod linked;

pub use archive::{Image, ImageError};
pub(super) use catalogue::base;
pub use catalogue::{CatalogueError, DEV, ETCD, PAUSE, TOOLBOX, etcd_versions, programs};
pub use linked::LinkedError;
