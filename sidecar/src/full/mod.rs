//! A full snapshot, in one stream from etcd into the store.
//!
//! ```text
//! confirm ─► name ─► Snapshot RPC ─► queue ─► threads: hash, compress ─► parts in flight ─► trailer right?
//!                        │ first piece                                                        fence ─► complete
//!                        └─► "store the deltas up to here" ───────────────────► stored?
//! ```
//!
//! **Holds**: no temporary file; memory is the queue, the compressor and the parts in flight, whatever the size of
//! the database; an object is completed only when its own hash is right and this sidecar still leads, otherwise the
//! upload is aborted and nothing is visible. The name carries a revision the database has for certain; its content
//! may be newer, so the deltas around it overlap it and never leave a hole; those up to it are stored first, unless the store
//! keeps them waiting for long.
//!
//! **After a crash**: no object.

mod pour;
mod sink;
mod take;

pub use pour::{SnapshotStreamError, compress_snapshot};
pub use take::{FullConfig, FullError, FullSnapshotter, UploadedFull};
