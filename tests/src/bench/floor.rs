//! The lower bound of every restore: inflate every object once, write the database, sync it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Context;
use mainstay_archive::compression::{Compression, open_decoder};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::args::PageCache;
use super::dataset::{Dataset, file_length};
use super::timed::{Cost, median_cost, settle_disk, time_in_process};

const CHUNK_SIZE: usize = 1 << 20;

/// The parts of the lower bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestoreFloor {
    /// Cost of inflating all objects on all cores.
    pub(super) inflate: Cost,
    /// Inflated size in bytes.
    pub(super) inflated_bytes: u64,
    /// Cost of writing and syncing a file of the size of the database.
    pub(super) write: Cost,
    /// Size of that file in bytes.
    pub(super) written_bytes: u64,
}

impl RestoreFloor {
    /// Time of both parts, one after the other.
    pub(super) fn seconds(&self) -> f64 {
        self.inflate.seconds + self.write.seconds
    }

    /// Measures the lower bound for a database of this size, once.
    pub(super) fn measure(
        dataset: &Dataset,
        scratch: &Path,
        database_bytes: u64,
        page_cache: PageCache,
    ) -> anyhow::Result<Self> {
        settle_disk(page_cache)?;
        let (inflate, inflated_bytes) = time_in_process(|| inflate_all(dataset))?;
        let path = scratch.join("floor");
        settle_disk(page_cache)?;
        let (write, ()) = time_in_process(|| write_file(&path, database_bytes))?;
        fs::remove_file(&path).context("failed to remove the written file")?;
        Ok(Self {
            inflate,
            inflated_bytes,
            write,
            written_bytes: database_bytes,
        })
    }

    /// The medians of several measurements.
    pub(super) fn median(floors: &[Self]) -> Option<Self> {
        let first = floors.first()?;
        let of =
            |part: fn(&Self) -> Cost| median_cost(&floors.iter().map(part).collect::<Vec<_>>());
        Some(Self {
            inflate: of(|floor| floor.inflate),
            write: of(|floor| floor.write),
            ..*first
        })
    }
}

/// Inflates every object, the largest first, one thread per core.
fn inflate_all(dataset: &Dataset) -> anyhow::Result<u64> {
    let sized = |path: &Path| Ok((file_length(path)?, path.to_path_buf()));
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
    let mut stream = open_inflated(object)?;
    let mut piece = vec![0u8; CHUNK_SIZE];
    let mut bytes = 0;
    loop {
        let count = stream
            .read(&mut piece)
            .with_context(|| format!("failed to read {}", object.display()))?;
        if count == 0 {
            return Ok(bytes);
        }
        sink.write_all(&piece[..count])
            .context("failed to write the inflated data")?;
        bytes += count as u64;
    }
}

/// The inflated stream of an object.
pub(super) fn open_inflated(object: &Path) -> anyhow::Result<Box<dyn Read + Send>> {
    let file =
        File::open(object).with_context(|| format!("failed to open {}", object.display()))?;
    Ok(open_decoder(&Compression::Gzip, file, NonZeroUsize::MIN)?)
}

/// Writes incompressible bytes sequentially, then syncs.
fn write_file(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut piece = vec![0u8; CHUNK_SIZE];
    StdRng::seed_from_u64(bytes).fill(piece.as_mut_slice());
    let mut file = File::create(path).context("failed to create a file")?;
    let mut left = bytes;
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(CHUNK_SIZE).min(CHUNK_SIZE);
        file.write_all(&piece[..count])
            .context("failed to write a file")?;
        left -= count as u64;
    }
    file.sync_data().context("failed to sync a file")
}
