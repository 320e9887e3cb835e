//! Takes a full snapshot: one stream from etcd to the store, without a temporary file.
//!
//! ```text
//! confirm ─► name ─► Snapshot RPC ─► queue ─► threads: hash, compress ─► parts in flight ─► hash valid?
//!                        │ first chunk                                                        fence ─► complete
//!                        └─► "store the deltas up to here" ───────────────────► stored?
//! ```
//!
//! **Invariants**: memory is bounded by the queue, the compressor and the parts in flight, whatever the size of the
//! database. An object is completed only if its hash is valid and this sidecar still leads; otherwise the upload is
//! aborted and nothing becomes visible. The name carries a revision that the database certainly contains. The content may
//! be newer, so deltas overlap the snapshot and never leave a gap. Deltas up to the snapshot are stored before it, unless
//! that takes too long.
//!
//! **After a crash**: no object is visible.

mod sink;
mod snapshot;
mod stream;

pub(crate) use snapshot::{FullConfig, FullError, FullSnapshotter, UploadedFull};
