//! Flags of etcd-backup-restore that mean nothing here: accepted, so that command lines keep working.

use clap::Args;

/// Accepted and without effect: no embedded etcd runs, nothing is spooled.
#[derive(Clone, Debug, Default, Args)]
pub struct UpstreamRestoreArgs {
    /// Without effect: objects are streamed, not stored
    #[arg(long, hide = true)]
    pub restoration_temp_snapshots_dir: Option<String>,
    /// Without effect: as many deltas are read ahead as there are processors
    #[arg(long, hide = true)]
    pub max_fetchers: Option<String>,
    /// Without effect: there is no embedded etcd
    #[arg(long, hide = true)]
    pub max_call_send_message_size: Option<String>,
    /// Without effect: there is no embedded etcd
    #[arg(long, hide = true)]
    pub max_request_bytes: Option<String>,
    /// Without effect: there is no embedded etcd
    #[arg(long, hide = true)]
    pub max_txn_ops: Option<String>,
    /// Without effect: there is no embedded etcd
    #[arg(long, hide = true)]
    pub embedded_etcd_quota_bytes: Option<String>,
    /// Without effect: there is no embedded etcd
    #[arg(long, hide = true)]
    pub auto_compaction_mode: Option<String>,
    /// Without effect: there is no embedded etcd
    #[arg(long, hide = true)]
    pub auto_compaction_retention: Option<String>,
}
