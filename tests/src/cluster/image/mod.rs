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
pub(super) use catalogue::build_base_images;
pub use catalogue::{CatalogueError, DEV_TAG, ETCD_IMAGE, PAUSE_IMAGE, TOOLBOX_IMAGE, read_etcd_versions, build_program_images};
pub use linked::LibraryError;
