//! Images for a cluster without a registry.
//!
//! ```text
//! programs of this machine ─ linked ─► files ─ archive ─► docker-archive ─ ctr import ─► containerd
//! ```
//!
//! An image contains a program, the libraries and the loader it is linked to, and nothing else: no shell, no package
//! manager. Images are reproducible: the same files result in the same archive.

mod archive;
mod catalogue;
mod libraries;

pub use archive::{Image, ImageError};
pub(super) use catalogue::build_base_images;
pub use catalogue::{
    CatalogueError, DEV_TAG, ETCD_IMAGE, PAUSE_IMAGE, TOOLBOX_IMAGE, build_program_images,
    read_etcd_versions,
};
pub use libraries::LibraryError;
