//! Flags that say which state is wanted.

use clap::Args;
use jiff::Timestamp;
use mainstay_archive::chain::{ChainRequest, ChainTarget};
use mainstay_archive::name::{SnapshotNameError, SnapshotName};
use mainstay_ids::Revision;

use crate::rebuild::StopPoint;

/// Which state is wanted; the newest without any of these.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Point in time")]
pub struct TargetArgs {
    /// Stop after this revision
    #[arg(long, value_name = "REVISION", conflicts_with = "to_time", value_parser = parse_revision)]
    #[arg(env = "MAINSTAY_TO_REVISION")]
    pub to_revision: Option<Revision>,

    /// Stop before the first change that was recorded later than this, RFC 3339 such as
    /// 2026-01-31T23:59:00Z; the result tells the revision this came to
    #[arg(long, value_name = "TIME", env = "MAINSTAY_TO_TIME")]
    pub to_time: Option<Timestamp>,

    /// Start from this full snapshot (its name, Full-…) instead of the best one
    #[arg(long, value_name = "SNAPSHOT", value_parser = parse_full_name, env = "MAINSTAY_FROM")]
    pub from: Option<SnapshotName>,
}

impl TargetArgs {
    /// The state as the archive is asked for it.
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

    /// Where the rebuild stops.
    pub fn stop_point(&self) -> StopPoint {
        match (self.to_revision, self.to_time) {
            (Some(revision), _) => StopPoint::Revision(revision),
            (None, Some(time)) => StopPoint::Time(time),
            (None, None) => StopPoint::End,
        }
    }
}

/// Reads a revision.
pub(crate) fn parse_revision(text: &str) -> Result<Revision, String> {
    match text.parse::<i64>() {
        Ok(number) if number >= 1 => Ok(Revision(number)),
        _ => Err("a revision is a whole number from 1 on".into()),
    }
}

fn parse_full_name(text: &str) -> Result<SnapshotName, SnapshotNameError> {
    text.rsplit('/').next().unwrap_or(text).parse()
}
