//! Benchmarks reading deltas and inflating objects; prints megabytes of uncompressed text per second.
//!
//! ```text
//! cargo run --release -p mainstay-archive --example delta_speed
//! ```

#![expect(clippy::print_stdout, reason = "printing is what this program is for")]

use std::error::Error;
use std::io::{Cursor, Read, Write};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use mainstay_archive::compression::{Compression, EncoderOptions, StreamEncoder, open_decoder};
use mainstay_archive::delta::{DeltaReader, DeltaWriter, Event, EventKind};
use mainstay_ids::{LeaseId, Revision};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

type BenchResult<T> = Result<T, Box<dyn Error>>;

const EVENTS: i64 = 100_000;
const VALUE: usize = 1024;
const ROUNDS: usize = 5;

fn main() -> BenchResult<()> {
    let delta = build_random_delta()?;
    let megabytes = delta.len() / 1_000_000;
    println!("delta: {EVENTS} events of {VALUE} random bytes, {megabytes} MB of text");
    measure("DeltaReader", delta.len(), || read_events(&delta))?;

    let threads = std::thread::available_parallelism()?;
    for (name, compression, threads) in [
        ("gzip, one thread", Compression::Gzip, NonZeroUsize::MIN),
        ("gzip, all threads", Compression::Gzip, threads),
        ("zlib", Compression::Zlib, NonZeroUsize::MIN),
        ("lzw", Compression::Lzw, NonZeroUsize::MIN),
        ("zstd", Compression::Zstd, NonZeroUsize::MIN),
    ] {
        let options = EncoderOptions {
            threads,
            ..EncoderOptions::default()
        };
        let mut packed = Vec::new();
        measure(&format!("deflate {name}"), delta.len(), || {
            let mut encoder = StreamEncoder::new(&compression, Vec::new(), options)?;
            encoder.write_all(&delta)?;
            packed = encoder.finish()?;
            Ok(())
        })?;
        println!(
            "  {} bytes, {}%",
            packed.len(),
            packed.len() * 100 / delta.len()
        );
        measure(&format!("inflate {name}"), delta.len(), || {
            inflate(&compression, packed.clone(), threads)
        })?;
    }
    let mut single = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    single.write_all(&delta)?;
    let single = single.finish()?;
    measure("inflate gzip of one member", delta.len(), || {
        inflate(&Compression::Gzip, single.clone(), NonZeroUsize::MIN)
    })
}

fn build_random_delta() -> BenchResult<Vec<u8>> {
    let mut random = StdRng::seed_from_u64(7);
    let mut value = [0_u8; VALUE];
    let mut writer = DeltaWriter::new(Vec::new());
    for number in 1..=EVENTS {
        random.fill_bytes(&mut value);
        writer.write_event(&Event {
            kind: EventKind::Put,
            key: format!("/registry/pods/namespace-{}/pod-{number}", number % 40).as_bytes(),
            value: &value,
            create_revision: Revision(number),
            mod_revision: Revision(number),
            version: 1,
            lease: LeaseId::NONE,
            lease_ttl: None,
            time: "2026-11-16T02:14:06.050388376Z",
        })?;
    }
    Ok(writer.finish()?)
}

fn read_events(delta: &[u8]) -> BenchResult<()> {
    let mut reader = DeltaReader::new(delta);
    while reader.next_event()?.is_some() {}
    Ok(())
}

fn inflate(compression: &Compression, packed: Vec<u8>, threads: NonZeroUsize) -> BenchResult<()> {
    let mut stream = open_decoder(compression, Cursor::new(packed), threads)?;
    let mut buffer = vec![0; 256 << 10];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

/// Runs the work a few times and prints the best rate.
fn measure(name: &str, bytes: usize, mut work: impl FnMut() -> BenchResult<()>) -> BenchResult<()> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        work()?;
        best = best.min(begin.elapsed());
    }
    let rate = bytes as u128 / best.as_micros().max(1);
    println!("{name:<28} {rate:>6} MB/s");
    Ok(())
}
