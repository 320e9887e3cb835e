//! What sidecars write beside the fields of a Lease, and the controller reads.

/// On the Lease of a member: whether its peers talk to it over TLS. etcd-backup-restore writes the same.
pub const PEER_TLS: &str = "member.etcd.gardener.cloud/tls-enabled";

/// On the Lease of the deltas: how many bytes of them there are behind a full snapshot. Only of our sidecars.
pub const DELTA_BYTES: &str = "etcd-mainstay.io/delta-bytes";

/// Beside [`DELTA_BYTES`]: the revision of the full snapshot they are behind. It is not always the newest one: a Job may have
/// stored another since.
pub const DELTA_BYTES_SINCE: &str = "etcd-mainstay.io/delta-bytes-since";
