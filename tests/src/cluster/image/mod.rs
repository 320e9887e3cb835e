//! Images of a test cluster and of a release, without a container daemon and without a registry.
//!
//! ```text
//! programs of this machine ─ linked ─► files ─ archive ─► docker-archive ─ ctr import ─► containerd
//!                                            └ oci ─────► OCI image layout ─ pushed by the user ─► registry
//! ```
//!
//! An image contains a program, the libraries and the loader it is linked to, and nothing else: no shell, no package
//! manager. Images are reproducible: the same files result in the same archive.

mod archive;
mod catalogue;
mod libraries;
mod oci;

pub use archive::{Image, ImageError, image_architecture};
pub(super) use catalogue::build_base_images;
pub use catalogue::{
    CA_BUNDLE, CatalogueError, DEV_TAG, ETCD_IMAGE, OWN_PROGRAMS, PAUSE_IMAGE, TOOLBOX_IMAGE,
    build_program_image, build_program_images, read_etcd_versions,
};
pub use libraries::{LibraryError, list_libraries};
pub use oci::ImageLabels;
