//! Reads the resource usage of a running process from `/proc`.

use std::fs;

use anyhow::Context;

/// Ticks of CPU time per second; Linux reports 100 to user space on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system CPU time in seconds.
pub(super) fn cpu_seconds(process: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))?;
    parse_cpu_seconds(&text).with_context(|| format!("unexpected format of {path}"))
}

/// Maximum resident set in bytes.
pub(super) fn peak_bytes(process: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))?;
    parse_peak_bytes(&text).with_context(|| format!("unexpected format of {path}"))
}

/// Fields 14 and 15. The second field, the name in parentheses, may contain blanks.
#[expect(clippy::cast_precision_loss, reason = "ticks of minutes fit")]
fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

fn parse_peak_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_parsed_after_a_name_with_spaces_and_parentheses() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 1 1 1";
        assert!((parse_cpu_seconds(stat).unwrap() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn peak_memory_of_this_process_is_readable() {
        let bytes = peak_bytes(std::process::id()).unwrap();
        assert!(bytes > 1 << 20, "{bytes}");
        cpu_seconds(std::process::id()).unwrap();
    }
}
