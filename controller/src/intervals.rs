//! All intervals and timeouts of the controller, with their reasons.

use std::time::Duration;

/// Interval between reconciles of an idle cluster: schedules become due, and a lost watch event must not be lost for ever.
pub(crate) const RESYNC: Duration = Duration::from_mins(10);
/// Interval while waiting. Most changes cause a watch event; some do not, such as a learner that has caught up.
pub(crate) const WAIT_POLL: Duration = Duration::from_secs(5);
/// Interval after a step. Its effect usually causes a watch event earlier.
pub(crate) const AFTER_STEP: Duration = Duration::from_secs(2);
/// A longer reconcile is cancelled, which is always safe: a hanging server must not occupy a worker for ever. The longest
/// query of etcd takes a quarter of it.
pub(crate) const RECONCILE_TIMEOUT: Duration = Duration::from_mins(1);
/// First and longest delay after a failed reconcile.
pub(crate) const ERROR_BACKOFF: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_mins(2));
/// Interval while a Lease is expired: the caches raise no event for a renewal.
pub(crate) const UNHEALTHY_POLL: Duration = Duration::from_secs(10);
/// Delay before a failed snapshot before a disruptive change is retried.
pub(crate) const SNAPSHOT_RETRY: Duration = Duration::from_mins(1);
/// Delay before a refused volume expansion is retried.
pub(crate) const EXPANSION_RETRY: Duration = Duration::from_mins(10);
/// Maximum age of member versions and sizes in the status of an idle cluster.
pub(crate) const MEMBER_FACTS_REFRESH: Duration = Duration::from_mins(10);
/// First delay before missing versions and sizes are queried again; doubles up to the refresh interval above.
pub(crate) const MISSING_FACTS_RETRY: Duration = Duration::from_secs(5);
/// Share of the interval over which reconciles of idle clusters are spread.
pub(crate) const JITTER_PERCENT: u64 = 20;
/// Expiry of the recovery lock without renewal: longer than a restart of the controller.
pub(crate) const LOCK_TTL: Duration = Duration::from_mins(10);
/// Minimum age before the log of a restore is read again: slightly less than `WAIT_POLL`, so that each poll reads it.
pub(crate) const LOG_POLL: Duration = Duration::from_secs(4);
/// Delay before a log that could not be read is tried again.
pub(crate) const LOG_RETRY: Duration = Duration::from_secs(20);
/// First and longest delay after a failed Job of a recovery.
pub(crate) const RECOVERY_BACKOFF: (Duration, Duration) =
    (Duration::from_secs(20), Duration::from_mins(20));
/// Time to wait for the result of a succeeded Job: its pod reports it, and the pod's watch event may arrive later.
pub(crate) const JOB_RESULT_TIMEOUT: Duration = Duration::from_secs(30);
