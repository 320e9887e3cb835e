//! The command line. Flags that etcd-backup-restore has keep its names and defaults; the others are our own.

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

/// Default of etcd-backup-restore for an unset or invalid `--delta-snapshot-memory-limit`.
const DEFAULT_DELTA_LIMIT_BYTES: u64 = 10 << 20;

/// Backs up the etcd member it runs next to.
#[derive(Debug, Parser)]
#[command(
    name = "mainstay-sidecar",
    version,
    about,
    long_about = "Backs up the etcd member it runs next to. Every member has one sidecar.\n\n\
        The sidecar of the etcd leader takes the backups: full snapshots on a schedule and delta snapshots without gaps in \
        between. It uploads them to an object store in the layout of etcd-backup-restore: either program can read and \
        continue a backup of the other. mainstay-restorer restores them.\n\n\
        Every flag can also be set as an environment variable: MAINSTAY_ plus its name in upper case. Without \
        --storage-provider the sidecar takes no backups and only maintains its member.",
    after_help = "Examples:\n  \
        mainstay-sidecar --endpoints http://127.0.0.1:2379 --storage-provider Local --store-container backups\n  \
        mainstay-sidecar --endpoints https://etcd-0:2379 --cacert ca.crt --cert tls.crt --key tls.key \\\n    \
          --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main"
)]
pub struct SidecarArgs {
    /// Command; only `server` exists
    #[arg(value_enum, default_value = "server", hide = true)]
    pub(crate) verb: SidecarVerb,

    /// Read the configuration from this YAML file
    ///
    /// The format is that of etcd-backup-restore. The file replaces the whole command line except for the logging flags.
    #[arg(long, env = "MAINSTAY_CONFIG_FILE", value_name = "FILE")]
    pub(crate) config_file: Option<PathBuf>,

    #[command(flatten)]
    pub etcd: EtcdArgs,

    #[command(flatten, next_help_heading = "Store")]
    pub store: StoreArgs,

    #[command(flatten)]
    pub(crate) snapshots: SnapshotArgs,

    #[command(flatten, next_help_heading = "Retention")]
    pub(crate) retention: RetentionArgs,

    #[command(flatten, next_help_heading = "Defragmentation")]
    pub(crate) defragmentation: DefragmentArgs,

    #[command(flatten, next_help_heading = "Kubernetes")]
    pub kubernetes: KubernetesArgs,

    #[command(flatten, next_help_heading = "HTTP")]
    pub http: HttpArgs,

    #[command(flatten)]
    pub member: OwnMemberArgs,

    #[command(flatten)]
    pub(crate) stop: StopArgs,

    /// Flags of etcd-backup-restore that have no effect here.
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SidecarVerb {
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompressionArg {
    /// Readable by etcd-backup-restore.
    Gzip,
    /// Readable by etcd-backup-restore.
    Zlib,
    /// Readable by etcd-backup-restore; slow.
    Lzw,
    /// Smaller and faster; etcd-backup-restore cannot read it.
    Zstd,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Snapshots")]
pub(crate) struct SnapshotArgs {
    /// Cron schedule of full snapshots, in UTC
    ///
    /// Five fields: minute, hour, day of month, month, day of week.
    #[arg(
        short,
        long,
        env = "MAINSTAY_SCHEDULE",
        value_name = "CRON",
        default_value = "0 */1 * * *"
    )]
    pub(crate) schedule: Schedule,

    /// Interval between delta snapshots
    ///
    /// A value below 1s disables delta snapshots.
    #[arg(
        long,
        env = "MAINSTAY_DELTA_SNAPSHOT_PERIOD",
        value_name = "DURATION",
        default_value = "20s"
    )]
    pub(crate) delta_snapshot_period: SignedDuration,

    /// Size of buffered events, in bytes, that triggers a delta snapshot
    ///
    /// The sidecar then uploads without waiting for --delta-snapshot-period. A value below 1 means 10 MiB.
    #[arg(
        long,
        env = "MAINSTAY_DELTA_SNAPSHOT_MEMORY_LIMIT",
        value_name = "BYTES",
        default_value_t = 10 << 20,
        allow_negative_numbers = true
    )]
    pub(crate) delta_snapshot_memory_limit: i64,

    /// Compress snapshots
    #[arg(
        long,
        env = "MAINSTAY_COMPRESS_SNAPSHOTS",
        value_name = "BOOL",
        num_args = 0..=1,
        default_value = "true",
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub(crate) compress_snapshots: bool,

    /// Compression algorithm of snapshots
    ///
    /// etcd-backup-restore cannot read zstd: use it only if you will not go back.
    #[arg(
        long,
        env = "MAINSTAY_COMPRESSION_POLICY",
        value_name = "POLICY",
        default_value = "gzip"
    )]
    pub(crate) compression_policy: CompressionArg,

    /// Interval at which the sidecar checks whether its member leads etcd
    ///
    /// After a change of etcd's leader another sidecar takes over within this time. At least 500ms.
    #[arg(
        long,
        env = "MAINSTAY_REELECTION_PERIOD",
        value_name = "DURATION",
        default_value = "5s"
    )]
    pub(crate) reelection_period: SignedDuration,

    /// Factor by which the delay grows after each failed attempt
    #[arg(
        long,
        env = "MAINSTAY_BACKOFF_MULTIPLIER",
        value_name = "FACTOR",
        default_value_t = 2
    )]
    pub(crate) backoff_multiplier: u32,

    /// Maximum delay between two attempts
    #[arg(
        long,
        env = "MAINSTAY_BACKOFF_THRESHOLD_TIME",
        value_name = "DURATION",
        default_value = "128s"
    )]
    pub(crate) backoff_threshold_time: SignedDuration,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Member")]
pub struct OwnMemberArgs {
    /// Peer URLs this member advertises
    ///
    /// If etcd's member list has others, the sidecar updates it. Without this flag the sidecar does not check them.
    #[arg(
        long,
        env = "MAINSTAY_MEMBER_PEER_URLS",
        value_name = "URL",
        value_delimiter = ','
    )]
    pub(crate) member_peer_urls: Vec<String>,

    /// Time to keep a previous data directory that a restore set aside
    ///
    /// It is deleted after this time, and only while the member serves. 0s keeps it.
    #[arg(
        long,
        env = "MAINSTAY_SET_ASIDE_RETENTION",
        value_name = "DURATION",
        default_value = "168h"
    )]
    pub(crate) set_aside_retention: SignedDuration,

    /// Prefix of the member name, before the name of the pod
    #[arg(long, env = "MAINSTAY_MEMBER_NAME_PREFIX", value_name = "PREFIX")]
    pub member_name_prefix: Option<String>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Stopping")]
pub(crate) struct StopArgs {
    /// Data directory of the member
    ///
    /// After a clean stop of etcd the sidecar writes a marker next to it, so that the next start skips the full verification.
    #[arg(
        short,
        long,
        env = "MAINSTAY_DATA_DIR",
        value_name = "DIR",
        default_value = "default.etcd"
    )]
    pub(crate) data_dir: PathBuf,

    /// Time to wait for etcd to exit before the clean-stop marker is skipped
    #[arg(
        long,
        env = "MAINSTAY_STOP_GRACE",
        value_name = "DURATION",
        default_value = "15s"
    )]
    pub(crate) stop_grace: SignedDuration,
}

/// Flags of etcd-backup-restore that are accepted without effect, so that existing command lines keep working. They
/// configure restores, which mainstay-restorer does, or internals of etcd-backup-restore.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct UpstreamArgs {
    #[arg(long, hide = true)]
    pub(crate) restoration_temp_snapshots_dir: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) name: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) initial_cluster: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) initial_cluster_token: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) initial_advertise_peer_urls: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) skip_hash_check: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) max_fetchers: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) max_call_send_message_size: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) max_request_bytes: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) max_txn_ops: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) embedded_etcd_quota_bytes: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) auto_compaction_mode: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) auto_compaction_retention: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) backoff_attempt_limit: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    pub(crate) use_etcd_wrapper: Option<String>,
}

impl SnapshotArgs {
    /// Interval of leader checks.
    pub(crate) fn reelection_interval(&self) -> Duration {
        Duration::try_from(self.reelection_period)
            .unwrap_or_default()
            // A zero or tiny period would poll etcd without a pause.
            .max(Duration::from_millis(500))
    }

    /// Configuration of the backup session that runs while leading.
    pub(crate) fn into_session_config(
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
        // As etcd-backup-restore: a period below one second disables delta snapshots.
        let tail = (period >= Duration::from_secs(1)).then(|| TailConfig {
            period: Some(period),
            limit_bytes: if limit < 1 {
                DEFAULT_DELTA_LIMIT_BYTES
            } else {
                limit
            },
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
