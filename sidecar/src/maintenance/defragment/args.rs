//! Flags of defragmentation: schedule and timeout of etcd-backup-restore, and a threshold.

use std::time::Duration;

use clap::Args;

use super::DefragmentConfig;
use super::decision::Threshold;
use crate::retention::args::parse_duration;
use crate::schedule::{Schedule, ScheduleError};

/// Flags of defragmentation.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub(crate) struct DefragmentArgs {
    /// Schedule for defragmenting all members: cron with five fields, in UTC
    ///
    /// An empty value disables scheduled defragmentation.
    #[arg(
        id = "defragmentation-schedule",
        long = "defragmentation-schedule",
        env = "MAINSTAY_DEFRAGMENTATION_SCHEDULE"
    )]
    #[arg(value_name = "CRON", default_value = "0 0 */3 * *", value_parser = parse_schedule)]
    pub(crate) schedule: OptionalSchedule,

    /// Free space in percent of the database at which a member is defragmented off schedule
    ///
    /// 0 disables the threshold. A single-member cluster is defragmented on schedule only, because etcd does not answer
    /// meanwhile.
    #[arg(long = "defragmentation-threshold-percent")]
    #[arg(env = "MAINSTAY_DEFRAGMENTATION_THRESHOLD_PERCENT")]
    #[arg(value_name = "PERCENT", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) threshold_percent: u8,

    /// Smallest database size, in bytes, to which the threshold applies
    #[arg(long = "defragmentation-threshold-minimum-size")]
    #[arg(env = "MAINSTAY_DEFRAGMENTATION_THRESHOLD_MINIMUM_SIZE")]
    #[arg(value_name = "BYTES", default_value_t = 100 << 20)]
    pub(crate) threshold_minimum_bytes: u64,

    /// Timeout for defragmenting one member
    #[arg(long = "etcd-defrag-timeout", env = "MAINSTAY_ETCD_DEFRAG_TIMEOUT")]
    #[arg(value_name = "DURATION", default_value = "8m", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// `None` if disabled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OptionalSchedule(pub(crate) Option<Schedule>);

impl DefragmentArgs {
    pub(crate) fn into_config(self) -> DefragmentConfig {
        let Self {
            schedule: OptionalSchedule(schedule),
            threshold_percent,
            threshold_minimum_bytes,
            timeout,
        } = self;
        DefragmentConfig {
            schedule,
            threshold: (threshold_percent > 0).then_some(Threshold {
                free_percent: threshold_percent.into(),
                minimum_bytes: threshold_minimum_bytes,
            }),
            timeout,
        }
    }
}

fn parse_schedule(text: &str) -> Result<OptionalSchedule, ScheduleError> {
    if text.trim().is_empty() {
        return Ok(OptionalSchedule(None));
    }
    text.parse().map(Some).map(OptionalSchedule)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct DefragmentCommand {
        #[command(flatten)]
        defragment: DefragmentArgs,
    }

    fn parse_config(flags: &[&str]) -> DefragmentConfig {
        let flags = std::iter::once("program").chain(flags.iter().copied());
        DefragmentCommand::try_parse_from(flags)
            .unwrap()
            .defragment
            .into_config()
    }

    #[test]
    fn flag_definitions_are_valid() {
        DefragmentCommand::command().debug_assert();
    }

    #[test]
    fn defaults_match_etcd_backup_restore() {
        let defaults = DefragmentConfig {
            schedule: Some("0 0 */3 * *".parse().unwrap()),
            threshold: None,
            timeout: Duration::from_mins(8),
        };
        assert_eq!(parse_config(&[]), defaults);
    }

    #[test]
    fn threshold_has_a_default_minimum_size() {
        let found = parse_config(&[
            "--defragmentation-threshold-percent=45",
            "--etcd-defrag-timeout=15m0s",
        ]);
        let threshold = Threshold {
            free_percent: 45,
            minimum_bytes: 104_857_600,
        };
        assert_eq!(found.threshold, Some(threshold));
        assert_eq!(found.timeout, Duration::from_mins(15));
    }

    #[test]
    fn empty_schedule_disables_and_invalid_values_are_refused() {
        assert_eq!(
            parse_config(&["--defragmentation-schedule="]).schedule,
            None
        );
        for flag in [
            "--defragmentation-schedule=daily",
            "--defragmentation-threshold-percent=101",
        ] {
            assert!(
                DefragmentCommand::try_parse_from(["program", flag]).is_err(),
                "{flag}"
            );
        }
    }
}
