//! Flags of retention: those of etcd-backup-restore, and a dry run.

use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::SignedDuration;
use mainstay_archive::retention::{RetentionPolicy, RetentionRules};

use super::{RetentionAction, RetentionConfig};

/// Longest period that disables garbage collection, as in etcd-backup-restore.
const DISABLED_PERIOD: Duration = Duration::from_secs(1);

/// Which full snapshots are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// Keep the last full snapshot of each hour of today, each of the last 7 days and each of the last 4 weeks
    #[value(name = "Exponential")]
    Exponential,
    /// Keep the newest full snapshots, as many as --max-backups
    #[value(name = "LimitBased")]
    LimitBased,
}

/// Flags of retention.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub(crate) struct RetentionArgs {
    /// Interval between garbage collections of old snapshots
    ///
    /// A value of 1s or less disables garbage collection.
    #[arg(
        long = "garbage-collection-period",
        env = "MAINSTAY_GARBAGE_COLLECTION_PERIOD"
    )]
    #[arg(value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub(crate) period: Duration,

    /// Policy that selects the full snapshots to keep
    ///
    /// Exponential keeps the last one of each hour of today, of each of the 7 days and of each of the 4 weeks before.
    /// `LimitBased` keeps the newest --max-backups.
    #[arg(
        long = "garbage-collection-policy",
        env = "MAINSTAY_GARBAGE_COLLECTION_POLICY"
    )]
    #[arg(value_name = "POLICY", default_value = "Exponential")]
    pub(crate) policy: PolicyName,

    /// Number of full snapshots to keep under the `LimitBased` policy
    #[arg(short = 'm', long = "max-backups", env = "MAINSTAY_MAX_BACKUPS")]
    #[arg(value_name = "COUNT", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_backups: u32,

    /// How long to keep deltas that the newest chain does not need
    ///
    /// With 0 they are deleted after the next full snapshot.
    #[arg(long = "delta-snapshot-retention-period")]
    #[arg(env = "MAINSTAY_DELTA_SNAPSHOT_RETENTION_PERIOD")]
    #[arg(value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub(crate) delta_retention: Duration,

    /// Log what garbage collection would delete, without deleting it
    #[arg(
        long = "garbage-collection-dry-run",
        env = "MAINSTAY_GARBAGE_COLLECTION_DRY_RUN"
    )]
    pub(crate) dry_run: bool,
}

impl RetentionArgs {
    pub(crate) fn into_config(self) -> RetentionConfig {
        let Self {
            period,
            policy,
            max_backups,
            delta_retention,
            dry_run,
        } = self;
        RetentionConfig {
            period: (period > DISABLED_PERIOD).then_some(period),
            rules: RetentionRules {
                policy: match policy {
                    PolicyName::Exponential => RetentionPolicy::Exponential,
                    PolicyName::LimitBased => RetentionPolicy::LimitBased {
                        limit: usize::try_from(max_backups).unwrap_or(usize::MAX),
                    },
                },
                delta_retention: SignedDuration::try_from(delta_retention)
                    .unwrap_or(SignedDuration::MAX),
            },
            action: if dry_run {
                RetentionAction::DryRun
            } else {
                RetentionAction::Delete
            },
        }
    }
}

/// Parses `90s`, `1h30m`, `12h0m0s` or `0`; rejects negative values.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let span: SignedDuration = text
        .parse()
        .map_err(|error: jiff::Error| error.to_string())?;
    Duration::try_from(span).map_err(|_| "must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct RetentionCommand {
        #[command(flatten)]
        retention: RetentionArgs,
    }

    fn parse_config(flags: &[&str]) -> RetentionConfig {
        let flags = std::iter::once("program").chain(flags.iter().copied());
        RetentionCommand::try_parse_from(flags)
            .unwrap()
            .retention
            .into_config()
    }

    #[test]
    fn flag_definitions_are_valid() {
        RetentionCommand::command().debug_assert();
    }

    #[test]
    fn defaults_match_etcd_backup_restore() {
        let defaults = RetentionConfig {
            period: Some(Duration::from_mins(1)),
            rules: RetentionRules {
                policy: RetentionPolicy::Exponential,
                delta_retention: SignedDuration::ZERO,
            },
            action: RetentionAction::Delete,
        };
        assert_eq!(parse_config(&[]), defaults);
        let limited = parse_config(&["--garbage-collection-policy=LimitBased"]);
        assert_eq!(
            limited.rules.policy,
            RetentionPolicy::LimitBased { limit: 7 }
        );
    }

    #[test]
    fn etcd_backup_restore_flags_are_accepted() {
        let found = parse_config(&[
            "--garbage-collection-period=12h0m0s",
            "--garbage-collection-policy=LimitBased",
            "-m",
            "3",
            "--delta-snapshot-retention-period=36h",
            "--garbage-collection-dry-run",
        ]);
        assert_eq!(found.period, Some(Duration::from_hours(12)));
        assert_eq!(found.rules.policy, RetentionPolicy::LimitBased { limit: 3 });
        assert_eq!(found.rules.delta_retention, SignedDuration::from_hours(36));
        assert_eq!(found.action, RetentionAction::DryRun);
    }

    #[test]
    fn period_of_one_second_or_less_disables_retention() {
        for off in ["0", "0s", "500ms", "1s"] {
            let flag = format!("--garbage-collection-period={off}");
            assert_eq!(parse_config(&[&flag]).period, None, "{off}");
        }
        let on = parse_config(&["--garbage-collection-period=1001ms"]);
        assert_eq!(on.period, Some(Duration::from_millis(1001)));
    }

    #[test]
    fn invalid_values_are_refused() {
        for flag in [
            "--garbage-collection-period=-1s",
            "--garbage-collection-policy=exponential",
            "--max-backups=0",
        ] {
            assert!(
                RetentionCommand::try_parse_from(["program", flag]).is_err(),
                "{flag}"
            );
        }
    }
}
