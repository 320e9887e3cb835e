//! Compares the figures with the targets.

use super::ScaleResults;
use super::timed::Cost;

/// A target and its measured value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TargetResult {
    /// The data set or rate that was measured.
    pub(super) subject: String,
    pub(super) metric: String,
    pub(super) target: String,
    pub(super) measured: String,
    pub(super) is_met: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RatioLimit {
    AtLeast(f64),
    AtMost(f64),
}

/// Every target that the figures cover.
pub(super) fn check_targets(results: &[ScaleResults]) -> Vec<TargetResult> {
    let mut claims: Vec<TargetResult> = results.iter().flat_map(targets_of).collect();
    for small in results {
        let large = results.iter().find(|large| large.scale == 4 * small.scale);
        let Some(large) = large else { continue };
        let ratio = large.restored.cost.seconds / small.restored.cost.seconds;
        let what = format!("restore, time against {}× the data", small.scale);
        claims.push(ratio_target(
            &format_scale(large),
            &what,
            ratio,
            RatioLimit::AtMost(4.5),
        ));
    }
    claims
}

fn format_scale(results: &ScaleResults) -> String {
    format!("{}×", results.scale)
}

fn targets_of(results: &ScaleResults) -> Vec<TargetResult> {
    let data = format_scale(results);
    let ScaleResults {
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
        ratio_target(
            &data,
            "restore, speed-up over replay through etcd (a)",
            replay.restore_seconds() / ours.seconds,
            RatioLimit::AtLeast(30.0),
        ),
        ratio_target(
            &data,
            "restore, time against the lower bound (c)",
            ours.seconds / floor.seconds(),
            RatioLimit::AtMost(1.5),
        ),
    ];
    claims.extend(peak_memory_target(
        &data,
        "restore, peak memory",
        ours,
        128_000_000,
    ));
    if let Some(cost) = compact {
        let ratio = replay.compact_seconds() / cost.seconds;
        let what = if replay.finish_seconds.is_some() {
            "compact, speed-up over replay and compaction through etcd"
        } else {
            "compact, speed-up over replay through etcd (a) alone"
        };
        claims.push(ratio_target(&data, what, ratio, RatioLimit::AtLeast(25.0)));
        claims.extend(peak_memory_target(
            &data,
            "compact, peak memory",
            *cost,
            256_000_000,
        ));
    }
    if let Some(verified) = verified {
        let ratio = verified.restorer.seconds / verified.etcdutl.seconds;
        let what = "verify, time against `etcdutl snapshot status`";
        claims.push(ratio_target(&data, what, ratio, RatioLimit::AtMost(1.0)));
    }
    claims
}

/// Compares a ratio with its limit.
pub(super) fn ratio_target(data: &str, what: &str, ratio: f64, limit: RatioLimit) -> TargetResult {
    let (target, is_met) = match limit {
        RatioLimit::AtLeast(least) => (format!("≥ {least} ×"), ratio >= least),
        RatioLimit::AtMost(most) => (format!("≤ {most} ×"), ratio <= most),
    };
    TargetResult {
        subject: data.to_owned(),
        metric: what.to_owned(),
        target,
        measured: format!("{ratio:.2} ×"),
        is_met,
    }
}

fn peak_memory_target(data: &str, what: &str, cost: Cost, most: u64) -> Option<TargetResult> {
    Some(memory_target(data, what, cost.peak_bytes?, most))
}

/// Compares memory with its limit.
pub(super) fn memory_target(data: &str, what: &str, measured: u64, most: u64) -> TargetResult {
    TargetResult {
        subject: data.to_owned(),
        metric: what.to_owned(),
        target: format!("≤ {}", format_megabytes(most)),
        measured: format_megabytes(measured),
        is_met: measured <= most,
    }
}

/// Rounds up, so that a value just above a limit is not displayed as the limit.
pub(super) fn format_megabytes(bytes: u64) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_target_is_met_only_within_its_limit() {
        assert!(ratio_target("1×", "faster", 30.0, RatioLimit::AtLeast(30.0)).is_met);
        assert!(!ratio_target("1×", "faster", 29.99, RatioLimit::AtLeast(30.0)).is_met);
        assert!(ratio_target("1×", "slower", 1.5, RatioLimit::AtMost(1.5)).is_met);
        assert!(!ratio_target("1×", "slower", 1.51, RatioLimit::AtMost(1.5)).is_met);
        assert!(!ratio_target("1×", "nothing measured", f64::NAN, RatioLimit::AtMost(1.5)).is_met);
    }

    #[test]
    fn memory_just_above_the_limit_is_rounded_up() {
        let claim = memory_target("1×", "memory", 128_000_001, 128_000_000);
        assert_eq!((claim.measured.as_str(), claim.is_met), ("129 MB", false));
    }
}
