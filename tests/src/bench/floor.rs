//! The least any restore could take: inflate every object once, write the database, sync it.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use steward_archive::compression::{Compression, decoder};

use super::args::PageCache;
use super::dataset::{Dataset, length};
use super::timed::{median_of, settle};

const PIECE: usize = 1 << 20;

/// What the floor is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floor {
    /// Seconds to inflate all objects on all cores.
    pub(super) inflate_seconds: f64,
    /// Bytes that come out.
    pub(super) inflated_bytes: u64,
    /// Seconds to write a file as large as the database and to sync it.
    pub(super) write_seconds: f64,
    /// Its size.
    pub(super) written_bytes: u64,
}

impl Floor {
    /// Both parts, one after the other.
    pub(super) fn seconds(&self) -> f64 {
        self.inflate_seconds + self.write_seconds
    }
}

/// Measures the floor for a database of this size; the medians of `runs`.
pub(super) fn measure(
    dataset: &Dataset,
    scratch: &Path,
    database_bytes: u64,
    (runs, page_cache): (usize, PageCache),
) -> anyhow::Result<Floor> {
    let mut inflating = Vec::with_capacity(runs);
    let mut writing = Vec::with_capacity(runs);
    let mut inflated_bytes = 0;
    for _ in 0..runs {
        settle(page_cache)?;
        let started = Instant::now();
        inflated_bytes = inflate_all(dataset)?;
        inflating.push(started.elapsed().as_secs_f64());
        settle(page_cache)?;
        let started = Instant::now();
        write_file(&scratch.join("floor"), database_bytes)?;
        writing.push(started.elapsed().as_secs_f64());
        std::fs::remove_file(scratch.join("floor")).context("remove the file written")?;
    }
    Ok(Floor {
        inflate_seconds: median_of(inflating.into_iter()),
        inflated_bytes,
        write_seconds: median_of(writing.into_iter()),
        written_bytes: database_bytes,
    })
}

/// Inflates every object, the largest first, one thread per core.
fn inflate_all(dataset: &Dataset) -> anyhow::Result<u64> {
    let sized = |path: &Path| Ok((length(path)?, path.to_path_buf()));
    let mut objects = dataset
        .objects()
        .map(sized)
        .collect::<anyhow::Result<Vec<_>>>()?;
    objects.sort_unstable_by(|one, other| other.cmp(one));
    let next = AtomicUsize::new(0);
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        let work = || -> anyhow::Result<u64> {
            let mut bytes = 0;
            while let Some((_, object)) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
                bytes += inflate(object, &mut std::io::sink())?;
            }
            Ok(bytes)
        };
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic in a worker"))
            .sum()
    })
}

/// Inflates one object with the decoder of the product.
pub(super) fn inflate(object: &Path, sink: &mut impl Write) -> anyhow::Result<u64> {
    let mut stream = open(object)?;
    let mut piece = vec![0u8; PIECE];
    let mut bytes = 0;
    loop {
        let count = stream
            .read(&mut piece)
            .with_context(|| format!("read {}", object.display()))?;
        if count == 0 {
            return Ok(bytes);
        }
        sink.write_all(&piece[..count])
            .context("write what was inflated")?;
        bytes += count as u64;
    }
}

/// The inflated stream of an object.
pub(super) fn open(object: &Path) -> anyhow::Result<Box<dyn Read + Send>> {
    let file = File::open(object).with_context(|| format!("open {}", object.display()))?;
    Ok(decoder(&Compression::Gzip, file, NonZeroUsize::MIN)?)
}

/// Bytes no disk can make smaller, written from start to end, then synced.
fn write_file(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut piece = vec![0u8; PIECE];
    StdRng::seed_from_u64(bytes).fill(piece.as_mut_slice());
    let mut file = File::create(path).context("create the file to write")?;
    let mut left = bytes;
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        file.write_all(&piece[..count]).context("write a file")?;
        left -= count as u64;
    }
    file.sync_data().context("sync a file")
}
