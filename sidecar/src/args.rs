//! The command line: the peer's flags where the meaning is the same, ours where there is none.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use jiff::SignedDuration;
use mainstay_archive::compression::Compression;
use mainstay_store::StoreArgs;
use mainstay_telemetry::LogArgs;

use crate::backoff::Backoff;
use crate::etcd::EtcdArgs;
use crate::full::FullConfig;
use crate::http::HttpArgs;
use crate::kubernetes::KubernetesArgs;
use crate::maintenance::defragment::args::DefragmentArgs;
use crate::retention::args::RetentionArgs;
use crate::schedule::Schedule;
use crate::session::SessionConfig;
use crate::tail::TailConfig;

/// What the peer takes when nothing sensible is given.
const DEFAULT_DELTA_LIMIT_BYTES: u64 = 10 << 20;

/// Backs up the etcd it runs beside.
#[derive(Debug, Parser)]
#[command(
    name = "mainstay-sidecar",
    version,
    about,
    long_about = "Backs up the etcd it runs beside, one sidecar per member.\n\n\
        The sidecar whose own member leads etcd takes the backups: full snapshots by schedule, and deltas without a \
        gap in between. They go to an object store in the layout of etcd-backup-restore, which can read them, as \
        this program continues what that one wrote. Restoring is the work of mainstay-restorer.\n\n\
        Every flag can be given as a variable, too: MAINSTAY_ and its name. Without --storage-provider nothing is \
        backed up, and the sidecar only looks after its member.",
    after_help = "Examples:\n  \
        mainstay-sidecar --endpoints http://127.0.0.1:2379 --storage-provider Local --store-container backups\n  \
        mainstay-sidecar --endpoints https://etcd-0:2379 --cacert ca.crt --cert tls.crt --key tls.key \\\n    \
          --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main"
)]
pub struct SidecarArgs {
    /// What to do; `server` is all there is, and the default
    #[arg(value_enum, default_value = "server", hide = true)]
    pub verb: SidecarVerb,

    /// Take everything from this file instead of the command line; the peer's format, YAML
    #[arg(long, env = "MAINSTAY_CONFIG_FILE", value_name = "FILE")]
    pub config_file: Option<PathBuf>,

    /// etcd.
    #[command(flatten)]
    pub etcd: EtcdArgs,

    /// The store.
    #[command(flatten, next_help_heading = "Store")]
    pub store: StoreArgs,

    /// Snapshots.
    #[command(flatten)]
    pub snapshots: SnapshotArgs,

    /// Retention.
    #[command(flatten, next_help_heading = "Retention")]
    pub retention: RetentionArgs,

    /// Defragmentation.
    #[command(flatten, next_help_heading = "Defragmentation")]
    pub defragmentation: DefragmentArgs,

    /// Kubernetes.
    #[command(flatten, next_help_heading = "Kubernetes")]
    pub kubernetes: KubernetesArgs,

    /// HTTP.
    #[command(flatten, next_help_heading = "HTTP")]
    pub http: HttpArgs,

    /// The own member.
    #[command(flatten)]
    pub member: OwnMemberArgs,

    /// The data directory, and how the process ends.
    #[command(flatten)]
    pub stop: StopArgs,

    /// Flags of the peer that have no meaning here.
    #[command(flatten)]
    pub upstream: UpstreamArgs,

    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SidecarVerb {
    /// Run beside a member.
    Server,
}

/// How objects are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressionArg {
    /// Read by everyone.
    Gzip,
    /// Read by everyone.
    Zlib,
    /// Read by everyone; slow.
    Lzw,
    /// Smaller and faster; not readable by etcd-backup-restore.
    Zstd,
}

/// Flags about snapshots.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Snapshots")]
pub struct SnapshotArgs {
    /// When full snapshots are taken: minute, hour, day, month, weekday, in UTC
    #[arg(
        short,
        long,
        env = "MAINSTAY_SCHEDULE",
        value_name = "CRON",
        default_value = "0 */1 * * *"
    )]
    pub schedule: Schedule,

    /// How often deltas are stored; below one second there are none
    #[arg(
        long,
        env = "MAINSTAY_DELTA_SNAPSHOT_PERIOD",
        value_name = "DURATION",
        default_value = "20s"
    )]
    pub delta_snapshot_period: SignedDuration,

    /// Bytes of events after which a delta is stored at once; below 1 means 10 MiB
    #[arg(
        long,
        env = "MAINSTAY_DELTA_SNAPSHOT_MEMORY_LIMIT",
        value_name = "BYTES",
        default_value_t = 10 << 20,
        allow_negative_numbers = true
    )]
    pub delta_snapshot_memory_limit: i64,

    /// Whether objects are compressed
    #[arg(
        long,
        env = "MAINSTAY_COMPRESS_SNAPSHOTS",
        value_name = "BOOL",
        num_args = 0..=1,
        default_value = "true",
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub compress_snapshots: bool,

    /// How objects are compressed; etcd-backup-restore cannot read zstd
    #[arg(
        long,
        env = "MAINSTAY_COMPRESSION_POLICY",
        value_name = "POLICY",
        default_value = "gzip"
    )]
    pub compression_policy: CompressionArg,

    /// Within which time another sidecar takes over after etcd's leader has changed
    #[arg(
        long,
        env = "MAINSTAY_REELECTION_PERIOD",
        value_name = "DURATION",
        default_value = "5s"
    )]
    pub reelection_period: SignedDuration,

    /// By which factor waits grow between attempts that fail
    #[arg(
        long,
        env = "MAINSTAY_BACKOFF_MULTIPLIER",
        value_name = "FACTOR",
        default_value_t = 2
    )]
    pub backoff_multiplier: u32,

    /// The longest wait between two attempts
    #[arg(
        long,
        env = "MAINSTAY_BACKOFF_THRESHOLD_TIME",
        value_name = "DURATION",
        default_value = "128s"
    )]
    pub backoff_threshold_time: SignedDuration,
}

/// Flags about the own member.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Member")]
pub struct OwnMemberArgs {
    /// Peer URLs the own member is to have in the member list; it is corrected where they differ
    #[arg(
        long,
        env = "MAINSTAY_MEMBER_PEER_URLS",
        value_name = "URL",
        value_delimiter = ','
    )]
    pub member_peer_urls: Vec<String>,

    /// How long data that a restore has put aside beside the data directory is kept, once the member serves; `0s` keeps it
    /// for ever
    #[arg(
        long,
        env = "MAINSTAY_SET_ASIDE_RETENTION",
        value_name = "DURATION",
        default_value = "168h"
    )]
    pub set_aside_retention: SignedDuration,

    /// What the name of the member has before the name of its pod
    #[arg(long, env = "MAINSTAY_MEMBER_NAME_PREFIX", value_name = "PREFIX")]
    pub member_name_prefix: Option<String>,
}

/// Flags about the end of the process.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Stopping")]
pub struct StopArgs {
    /// The member's data directory; after an orderly stop a note beside it saves the next start a long verification
    #[arg(
        short,
        long,
        env = "MAINSTAY_DATA_DIR",
        value_name = "DIR",
        default_value = "default.etcd"
    )]
    pub data_dir: PathBuf,

    /// How long to wait for etcd to end before the note is left out
    #[arg(
        long,
        env = "MAINSTAY_STOP_GRACE",
        value_name = "DURATION",
        default_value = "15s"
    )]
    pub stop_grace: SignedDuration,
}

/// Flags of the peer that are accepted so that existing command lines keep working. They belong to restoring,
/// which is mainstay-restorer's, or to how the peer is built.
#[derive(Clone, Debug, Default, Args)]
pub struct UpstreamArgs {
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub restoration_temp_snapshots_dir: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub name: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub initial_cluster: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub initial_cluster_token: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub initial_advertise_peer_urls: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    pub skip_hash_check: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub max_fetchers: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub max_call_send_message_size: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub max_request_bytes: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub max_txn_ops: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub embedded_etcd_quota_bytes: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub auto_compaction_mode: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub auto_compaction_retention: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true)]
    pub backoff_attempt_limit: Option<String>,
    #[expect(missing_docs, reason = "without effect, and hidden")]
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    pub use_etcd_wrapper: Option<String>,
}

impl SnapshotArgs {
    /// How often to look who leads.
    pub fn reelection_interval(&self) -> Duration {
        Duration::try_from(self.reelection_period)
            .unwrap_or_default()
            .max(Duration::from_millis(500))
    }

    /// How a leader works.
    pub fn into_session_config(
        self,
        snapshot_timeout: Duration,
        threads: std::num::NonZeroUsize,
    ) -> SessionConfig {
        let compression = self.compression();
        let backoff = Backoff {
            factor: self.backoff_multiplier,
            max_delay: Duration::try_from(self.backoff_threshold_time).unwrap_or_default(),
        };
        let limit = u64::try_from(self.delta_snapshot_memory_limit).unwrap_or_default();
        let period = Duration::try_from(self.delta_snapshot_period).unwrap_or_default();
        let tail = (period >= Duration::from_secs(1)).then(|| TailConfig {
            period: Some(period),
            limit_bytes: if limit < 1 { DEFAULT_DELTA_LIMIT_BYTES } else { limit },
            compression: compression.clone(),
            backoff,
        });
        SessionConfig {
            schedule: self.schedule,
            tail,
            full: FullConfig {
                compression,
                threads,
                timeout: snapshot_timeout,
            },
            backoff,
        }
    }

    fn compression(&self) -> Compression {
        if !self.compress_snapshots {
            return Compression::None;
        }
        match self.compression_policy {
            CompressionArg::Gzip => Compression::Gzip,
            CompressionArg::Zlib => Compression::Zlib,
            CompressionArg::Lzw => Compression::Lzw,
            CompressionArg::Zstd => Compression::Zstd,
        }
    }
}

#[cfg(test)]
mod tests;
