//! What a running process has used so far, as the kernel tells it.

use std::fs;

use anyhow::Context;

/// Ticks of processor time in a second; Linux tells user space 100 on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time, in the program and in the kernel for it, in seconds.
pub(super) fn cpu_seconds(process: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse_cpu_seconds(&text).with_context(|| format!("{path} has another form"))
}

/// The largest resident set it has had, in bytes.
pub(super) fn peak_bytes(process: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse_peak_bytes(&text).with_context(|| format!("{path} has another form"))
}

/// Fields 14 and 15; the second, the name, may hold blanks and is in brackets.
#[expect(
    clippy::cast_precision_loss,
    reason = "ticks of minutes, not of centuries"
)]
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
    fn times_are_found_behind_a_name_with_blanks_and_brackets() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 1 1 1";
        assert!((parse_cpu_seconds(stat).unwrap() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn this_process_has_a_peak() {
        let bytes = peak_bytes(std::process::id()).unwrap();
        assert!(bytes > 1 << 20, "{bytes}");
        cpu_seconds(std::process::id()).unwrap();
    }
}
