//! Flags of the restored state.

use clap::Args;
use jiff::SignedDuration;
use mainstay_ids::{HashKv, Revision};

use crate::available_threads;
use crate::rebuild::finish::RevisionBump;
use crate::rebuild::{HashCheck, RebuildOptions};
use crate::target::TargetArgs;

/// Options of the restored state.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Restored state")]
pub struct RestoreOptionsArgs {
    /// Start the restored etcd this many revisions above the newest one of the backup
    ///
    /// No client then sees a revision again that it saw before the restore. The number is added to the newest revision
    /// of the backup, also if an older one is restored. Kubernetes: 1000000000.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        requires = "mark_compacted"
    )]
    #[arg(env = "MAINSTAY_BUMP_REVISION")]
    pub(crate) bump_revision: u64,

    /// Mark all revisions before the restore as compacted
    ///
    /// Watches that started before the restore fail, and their clients list again.
    #[arg(long, env = "MAINSTAY_MARK_COMPACTED")]
    pub(crate) mark_compacted: bool,

    /// TTL of a lease whose granted TTL is not in the backup
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        env = "MAINSTAY_DEFAULT_LEASE_TTL"
    )]
    pub(crate) default_lease_ttl: SignedDuration,

    /// Accept a full snapshot without a hash, such as a copied database file
    #[arg(long, env = "MAINSTAY_SKIP_HASH_CHECK")]
    pub(crate) skip_hash_check: bool,

    /// Restore only if the backup has this hash, as reported by `HashKV` of a live etcd
    ///
    /// Format: REVISION:COMPACTED:HASH with the compacted revision (0 for none) and 8 hexadecimal digits.
    #[arg(long, value_name = "HASH", env = "MAINSTAY_EXPECT_HASH_KV")]
    pub(crate) expect_hash_kv: Option<HashKv>,
}

impl RestoreOptionsArgs {
    /// Returns the options of the rebuild.
    pub fn rebuild_options(&self, target: &TargetArgs) -> RebuildOptions {
        RebuildOptions {
            stop: target.stop_point(),
            hash_check: if self.skip_hash_check {
                HashCheck::Skipped
            } else {
                HashCheck::Required
            },
            default_lease_seconds: self.default_lease_ttl.as_secs().max(1),
            threads: available_threads(),
        }
    }

    /// Returns how revisions are raised; `newest` is the newest revision of the backup.
    pub fn revision_bump(&self, newest: Option<i64>) -> RevisionBump {
        RevisionBump {
            by: self.bump_revision,
            newest: Revision(newest.unwrap_or_default()),
            mark_compacted: self.mark_compacted,
        }
    }
}
