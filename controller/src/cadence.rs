//! Every interval of the controller, with its reason.

use std::time::Duration;

/// A cluster at rest is looked at again although nothing happened: clocks move, and a missed event must not be for ever.
pub const RESYNC: Duration = Duration::from_mins(10);
/// Something is waited for that events announce; this is for what they do not, such as a learner that has caught up.
pub const WAIT_POLL: Duration = Duration::from_secs(5);
/// The effect of a step is usually announced by an event within a moment.
pub const AFTER_STEP: Duration = Duration::from_secs(2);
/// A pass that takes longer is abandoned, which is always safe: a server that is silent must not keep a worker for ever. The
/// longest question to etcd takes a quarter of it.
pub const RECONCILE_TIMEOUT: Duration = Duration::from_mins(1);
/// The first pause after an error, and the longest.
pub const ERROR_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(2));
/// After a member was not ready, its Lease is looked at this often: renewals are not announced.
pub const UNHEALTHY_POLL: Duration = Duration::from_secs(10);
/// The pause between two attempts at a snapshot before a change.
pub const SNAPSHOT_RETRY: Duration = Duration::from_mins(1);
/// How long volumes that could not be expanded are left alone.
pub const EXPANSION_RETRY: Duration = Duration::from_mins(10);
/// How old versions and sizes of members may be in a status at rest.
pub const MEMBER_FACTS_REFRESH: Duration = Duration::from_mins(10);
/// The first pause before versions and sizes that nobody told yet are asked for again; it doubles up to [`MEMBER_FACTS`].
pub const MISSING_FACTS_RETRY: Duration = Duration::from_secs(5);
/// At rest, how far passes over many clusters are spread: a part of the interval.
pub const JITTER_PERCENT: u64 = 20;
/// How long the lock of a recovery lasts when nobody renews it: a restart of the controller takes less.
pub const LOCK_TTL: Duration = Duration::from_mins(10);
/// How often the log of a restore is read: a little more often than what is waited for is looked at, so that none is skipped.
pub const LOG_POLL: Duration = Duration::from_secs(4);
/// How often one is tried that could not be read.
pub const LOG_RETRY: Duration = Duration::from_secs(20);
/// The first pause after a Job of a recovery failed, and the longest.
pub const RECOVERY_BACKOFF: (Duration, Duration) =
    (Duration::from_secs(20), Duration::from_mins(20));
/// How long the last words of a Job that went well are waited for: its pod tells them, and may be heard of later.
pub const JOB_RESULT_TIMEOUT: Duration = Duration::from_secs(30);
