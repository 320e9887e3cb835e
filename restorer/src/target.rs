//! Flags that say which state is wanted.

use clap::Args;
use jiff::Timestamp;
use mainstay_archive::chain::{Request, Target};
use mainstay_archive::name::{NameError, SnapshotName};
use mainstay_ids::Revision;

use crate::rebuild::Stop;

/// Which state is wanted; the newest without any of these.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Point in time")]
pub struct TargetArgs {
    /// Stop after this revision
    #[arg(long, value_name = "REVISION", conflicts_with = "to_time", value_parser = revision)]
    #[arg(env = "MAINSTAY_TO_REVISION")]
    pub to_revision: Option<Revision>,

    /// Stop before the first change that was recorded later than this, RFC 3339 such as
    /// 2026-01-31T23:59:00Z; the result tells the revision this came to
    #[arg(long, value_name = "TIME", env = "MAINSTAY_TO_TIME")]
    pub to_time: Option<Timestamp>,

    /// Start from this full snapshot (its name, Full-…) instead of the best one
    #[arg(long, value_name = "SNAPSHOT", value_parser = full_name, env = "MAINSTAY_FROM")]
    pub from: Option<SnapshotName>,
}

impl TargetArgs {
    /// The state as the archive is asked for it.
    pub fn request(&self) -> Request {
        let target = match (self.to_revision, self.to_time) {
            (Some(revision), _) => Target::Revision(revision),
            (None, Some(time)) => Target::Time(time),
            (None, None) => Target::Latest,
        };
        Request {
            from: self.from.clone(),
            ..Request::new(target)
        }
    }

    /// Where the rebuild stops.
    pub fn stop(&self) -> Stop {
        match (self.to_revision, self.to_time) {
            (Some(revision), _) => Stop::Revision(revision),
            (None, Some(time)) => Stop::Time(time),
            (None, None) => Stop::End,
        }
    }
}

/// Reads a revision.
pub(crate) fn revision(text: &str) -> Result<Revision, String> {
    match text.parse::<i64>() {
        Ok(number) if number >= 1 => Ok(Revision(number)),
        _ => Err("a revision is a whole number from 1 on".into()),
    }
}

fn full_name(text: &str) -> Result<SnapshotName, NameError> {
    text.rsplit('/').next().unwrap_or(text).parse()
}
