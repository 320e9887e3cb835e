//! Facts about the machine for the report.

use std::fs;
use std::num::NonZeroUsize;
use std::thread;

/// The machine that the figures depend on.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    /// CPUs available to this program.
    pub(super) cores: usize,
    /// CPU model.
    pub(super) processor: String,
    /// Bytes of memory.
    pub(super) memory_bytes: u64,
    /// The kernel.
    pub(super) kernel: String,
    /// Load average of the minute before the benchmark.
    pub(super) load: String,
}

impl Machine {
    /// Reads the facts of this machine.
    pub(super) fn detect() -> Self {
        let cpu = read_file("/proc/cpuinfo");
        let memory = read_file("/proc/meminfo");
        let kibibytes = find_field(&memory, "MemTotal").and_then(|text| {
            let (number, _) = text.split_once(' ')?;
            number.parse::<u64>().ok()
        });
        Self {
            cores: thread::available_parallelism().map_or(1, NonZeroUsize::get),
            processor: find_field(&cpu, "model name")
                .unwrap_or("unknown")
                .to_owned(),
            memory_bytes: kibibytes.unwrap_or(0) * 1024,
            kernel: kernel_release(&read_file("/proc/sys/kernel/osrelease")),
            load: read_file("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

/// The kernel version without build information.
fn kernel_release(text: &str) -> String {
    text.trim().split('-').next().unwrap_or_default().to_owned()
}

fn read_file(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn find_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_release_omits_the_build_suffix() {
        assert_eq!(kernel_release("6.1.0-18-amd64\n"), "6.1.0");
        assert_eq!(kernel_release(""), "");
    }

    #[test]
    fn fields_are_found_regardless_of_whitespace() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nMemTotal:       24 kB\n";
        assert_eq!(find_field(text, "model name"), Some("Some CPU"));
        assert_eq!(find_field(text, "MemTotal"), Some("24 kB"));
        assert_eq!(find_field(text, "flags"), None);
    }
}
