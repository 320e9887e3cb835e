//! Flags of etcd-backup-restore that have no effect here, accepted so that existing command lines keep working.

use clap::Args;

/// Flags without effect: no embedded etcd runs, and snapshots are not stored on disk first.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct UpstreamRestoreArgs {
    /// No effect: objects are streamed, not stored
    #[arg(long, hide = true)]
    pub(crate) restoration_temp_snapshots_dir: Option<String>,
    /// No effect: the number of CPUs limits how many deltas are fetched in parallel
    #[arg(long, hide = true)]
    pub(crate) max_fetchers: Option<String>,
    /// No effect: no embedded etcd runs
    #[arg(long, hide = true)]
    pub(crate) max_call_send_message_size: Option<String>,
    /// No effect: no embedded etcd runs
    #[arg(long, hide = true)]
    pub(crate) max_request_bytes: Option<String>,
    /// No effect: no embedded etcd runs
    #[arg(long, hide = true)]
    pub(crate) max_txn_ops: Option<String>,
    /// No effect: no embedded etcd runs
    #[arg(long, hide = true)]
    pub(crate) embedded_etcd_quota_bytes: Option<String>,
    /// No effect: no embedded etcd runs
    #[arg(long, hide = true)]
    pub(crate) auto_compaction_mode: Option<String>,
    /// No effect: no embedded etcd runs
    #[arg(long, hide = true)]
    pub(crate) auto_compaction_retention: Option<String>,
}
