//! The targets, and whether the figures meet them.

use super::Results;
use super::timed::Cost;

/// A target and what was measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    /// What was measured: a size, a rate.
    pub(super) data: String,
    pub(super) what: String,
    pub(super) target: String,
    pub(super) measured: String,
    pub(super) is_met: bool,
}

/// Which side of a ratio is good.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

/// Every claim the figures allow to check.
pub(super) fn check(results: &[Results]) -> Vec<Claim> {
    let mut claims: Vec<Claim> = results.iter().flat_map(of_one).collect();
    for small in results {
        let large = results.iter().find(|large| large.scale == 4 * small.scale);
        let Some(large) = large else { continue };
        let ratio = large.restored.cost.seconds / small.restored.cost.seconds;
        let what = format!("restore, time against {}× the data", small.scale);
        claims.push(times(&size(large), &what, ratio, Limit::AtMost(4.5)));
    }
    claims
}

fn size(results: &Results) -> String {
    format!("{}×", results.scale)
}

fn of_one(results: &Results) -> Vec<Claim> {
    let data = size(results);
    let Results {
        scale: _,
        restored,
        floor,
        replay,
        compact,
        verified,
        dataset: _,
    } = results;
    let ours = restored.cost;
    let mut claims = vec![
        times(
            &data,
            "restore, faster than replay through etcd (a)",
            replay.restore_seconds() / ours.seconds,
            Limit::AtLeast(30.0),
        ),
        times(
            &data,
            "restore, time against the floor (c)",
            ours.seconds / floor.seconds(),
            Limit::AtMost(1.5),
        ),
    ];
    claims.extend(memory(&data, "restore, peak memory", ours, 128_000_000));
    if let Some(cost) = compact {
        let ratio = replay.compact_seconds() / cost.seconds;
        let what = if replay.fold_seconds.is_some() {
            "compact, faster than replay and compaction through etcd"
        } else {
            "compact, faster than replay through etcd (a) alone"
        };
        claims.push(times(&data, what, ratio, Limit::AtLeast(25.0)));
        claims.extend(memory(&data, "compact, peak memory", *cost, 256_000_000));
    }
    if let Some(verified) = verified {
        let ratio = verified.ours.seconds / verified.etcdutl.seconds;
        let what = "verify, time against `etcdutl snapshot status`";
        claims.push(times(&data, what, ratio, Limit::AtMost(1.0)));
    }
    claims
}

/// A ratio against its limit.
pub(super) fn times(data: &str, what: &str, ratio: f64, limit: Limit) -> Claim {
    let (target, is_met) = match limit {
        Limit::AtLeast(least) => (format!("≥ {least} ×"), ratio >= least),
        Limit::AtMost(most) => (format!("≤ {most} ×"), ratio <= most),
    };
    Claim {
        data: data.to_owned(),
        what: what.to_owned(),
        target,
        measured: format!("{ratio:.2} ×"),
        is_met,
    }
}

fn memory(data: &str, what: &str, cost: Cost, most: u64) -> Option<Claim> {
    Some(bytes(data, what, cost.peak_bytes?, most))
}

/// Memory against its limit.
pub(super) fn bytes(data: &str, what: &str, measured: u64, most: u64) -> Claim {
    Claim {
        data: data.to_owned(),
        what: what.to_owned(),
        target: format!("≤ {}", megabytes(most)),
        measured: megabytes(measured),
        is_met: measured <= most,
    }
}

/// Bytes as a person reads them: millions.
pub(super) fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_that_misses_its_limit_is_told_apart_from_one_that_meets_it() {
        assert!(times("1×", "faster", 30.0, Limit::AtLeast(30.0)).is_met);
        assert!(!times("1×", "faster", 29.99, Limit::AtLeast(30.0)).is_met);
        assert!(times("1×", "slower", 1.5, Limit::AtMost(1.5)).is_met);
        assert!(!times("1×", "slower", 1.51, Limit::AtMost(1.5)).is_met);
        assert!(!times("1×", "nothing measured", f64::NAN, Limit::AtMost(1.5)).is_met);
    }

    #[test]
    fn memory_just_above_the_limit_does_not_look_like_the_limit() {
        let claim = bytes("1×", "memory", 128_000_001, 128_000_000);
        assert_eq!((claim.measured.as_str(), claim.is_met), ("129 MB", false));
    }
}
