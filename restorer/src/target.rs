//! Flags that select the state to restore.

use clap::Args;
use jiff::Timestamp;
use mainstay_archive::chain::{ChainRequest, ChainTarget};
use mainstay_archive::name::{SnapshotName, SnapshotNameError};
use mainstay_ids::Revision;

use crate::rebuild::StopPoint;

/// Selects the state to restore; the newest one without any of these flags.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Point in time")]
pub struct TargetArgs {
    /// Restore up to and including this revision [default: the newest]
    #[arg(long, value_name = "REVISION", conflicts_with = "to_time", value_parser = parse_revision)]
    #[arg(env = "MAINSTAY_TO_REVISION")]
    pub(crate) to_revision: Option<Revision>,

    /// Restore up to this time, RFC 3339 such as 2026-01-31T23:59:00Z
    ///
    /// Stops before the first change that was recorded later. The result reports the revision reached.
    #[arg(long, value_name = "TIME", env = "MAINSTAY_TO_TIME")]
    pub(crate) to_time: Option<Timestamp>,

    /// Start from the full snapshot with this name (Full-…) [default: the best one]
    ///
    /// Disables the fallback to other chains if an object is damaged.
    #[arg(long, value_name = "SNAPSHOT", value_parser = parse_full_name, env = "MAINSTAY_FROM")]
    pub(crate) from: Option<SnapshotName>,
}

impl TargetArgs {
    /// Returns the request for choosing a chain.
    pub fn chain_request(&self) -> ChainRequest {
        let target = match (self.to_revision, self.to_time) {
            (Some(revision), _) => ChainTarget::Revision(revision),
            (None, Some(time)) => ChainTarget::Time(time),
            (None, None) => ChainTarget::Latest,
        };
        ChainRequest {
            base: self.from.clone(),
            ..ChainRequest::new(target)
        }
    }

    /// Returns where the rebuild stops.
    pub(crate) fn stop_point(&self) -> StopPoint {
        match (self.to_revision, self.to_time) {
            (Some(revision), _) => StopPoint::Revision(revision),
            (None, Some(time)) => StopPoint::Time(time),
            (None, None) => StopPoint::End,
        }
    }
}

pub(crate) fn parse_revision(text: &str) -> Result<Revision, String> {
    match text.parse::<i64>() {
        Ok(number) if number >= 1 => Ok(Revision(number)),
        _ => Err("a revision must be a whole number of at least 1".into()),
    }
}

fn parse_full_name(text: &str) -> Result<SnapshotName, SnapshotNameError> {
    // Accepts a whole object key, as `list --long` prints it.
    text.rsplit('/').next().unwrap_or(text).parse()
}
