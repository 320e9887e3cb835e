//! Lease annotations that the sidecars write and the controller reads.

/// On a member Lease: whether peer communication uses TLS. Defined by etcd-backup-restore.
pub const PEER_TLS: &str = "member.etcd.gardener.cloud/tls-enabled";

/// On the delta snapshot Lease: total bytes of the delta snapshots after a full snapshot. Not written by
/// etcd-backup-restore.
pub const DELTA_BYTES: &str = "etcd-mainstay.io/delta-bytes";

/// With [`DELTA_BYTES`]: the revision of that full snapshot. It may not be the newest one, because a
/// compaction Job may have stored another since.
pub const DELTA_BYTES_SINCE: &str = "etcd-mainstay.io/delta-bytes-since";
