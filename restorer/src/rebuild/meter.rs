//! Progress counters of a long job, readable from another thread.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one job.
#[derive(Debug, Default)]
pub struct Meter {
    total_bytes: AtomicU64,
    read_bytes: AtomicU64,
    revision: AtomicU64,
}

/// Values of a [`Meter`] at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterReading {
    /// Stored bytes to read.
    pub(crate) total_bytes: u64,
    /// Stored bytes read so far.
    pub(crate) read_bytes: u64,
    /// Newest revision read from a delta; 0 before the first.
    pub(crate) revision: u64,
}

impl Meter {
    /// Resets all counters and sets the bytes to read.
    pub(crate) fn reset(&self, bytes: u64) {
        self.total_bytes.store(bytes, Ordering::Relaxed);
        self.read_bytes.store(0, Ordering::Relaxed);
        self.revision.store(0, Ordering::Relaxed);
    }

    /// Adds to the bytes to read.
    pub(crate) fn add_total(&self, bytes: u64) {
        self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn advance(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_revision(&self, revision: i64) {
        self.revision
            .store(revision.unsigned_abs(), Ordering::Relaxed);
    }

    pub(crate) fn reading(&self) -> MeterReading {
        MeterReading {
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            revision: self.revision.load(Ordering::Relaxed),
        }
    }
}

/// A reader that counts its bytes.
#[derive(Debug)]
pub struct MeteredRead<R, M> {
    inner: R,
    meter: M,
}

impl<R: Read, M: AsRef<Meter>> MeteredRead<R, M> {
    /// Counts what is read from `inner`.
    pub(crate) fn new(inner: R, meter: M) -> Self {
        Self { inner, meter }
    }
}

impl<R: Read, M: AsRef<Meter>> Read for MeteredRead<R, M> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.meter.as_ref().advance(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_attempt_resets_the_progress() {
        let meter = Meter::default();
        meter.reset(10);
        meter.advance(9);
        meter.set_revision(7);
        meter.reset(12);
        meter.advance(3);
        let expected = MeterReading {
            total_bytes: 12,
            read_bytes: 3,
            revision: 0,
        };
        assert_eq!(meter.reading(), expected);
    }
}
