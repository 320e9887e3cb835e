//! Gzip decoding: members with a length on several threads, any other gzip as one stream.
//!
//! ```text
//! source ─► 20 bytes ─┬ sized ─► member bytes ─► lanes ─► content, in order
//!                     └ not sized, or too long ─► ordinary gzip from here to the end
//! ```

use std::io::{self, BufReader, Chain, Cursor, Read};
use std::num::NonZeroUsize;

use flate2::bufread::MultiGzDecoder;
use libdeflater::Decompressor;

use super::member::{self, HEADER_LEN, InvalidMember};
use super::worker_pool::{WorkerPanicked, WorkerPool};
use super::{Compression, READ_AHEAD, StreamError};

/// A source with its already read header put back in front.
type Replayed<R> = Chain<Cursor<Vec<u8>>, R>;

/// Reads the first header and picks the decoder.
pub(super) fn open<R: Read + Send + 'static>(
    mut source: R,
    threads: NonZeroUsize,
) -> io::Result<Box<dyn Read + Send>> {
    let start = read_header(&mut source)?;
    let is_sized = start
        .first_chunk()
        .and_then(member::parse_member_size)
        .is_some();
    let source = Cursor::new(start).chain(source);
    if is_sized {
        Ok(Box::new(MemberReader::new(source, threads)?))
    } else {
        Ok(Box::new(GzipReader::new(source, 0)))
    }
}

/// Reads one header; shorter only at the end of the source.
fn read_header(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(HEADER_LEN);
    let limit = u64::try_from(HEADER_LEN).unwrap_or(u64::MAX);
    source.take(limit).read_to_end(&mut start)?;
    Ok(start)
}

/// Ordinary gzip of any number of members. Reports corruption as a [`StreamError`].
struct GzipReader<R: Read>(MultiGzDecoder<BufReader<CountingReader<R>>>);

impl<R: Read> GzipReader<R> {
    /// `offset` is the position of `source` in the whole input.
    fn new(source: R, offset: u64) -> Self {
        let counted = CountingReader {
            source,
            offset,
            source_failed: false,
        };
        Self(MultiGzDecoder::new(BufReader::with_capacity(
            READ_AHEAD, counted,
        )))
    }
}

impl<R: Read> Read for GzipReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out).map_err(|error| {
            let buffered = self.0.get_ref().buffer().len() as u64;
            let counted = self.0.get_ref().get_ref();
            // An error of the store is retryable and must not be reported as a corrupt object.
            if counted.source_failed || error.kind() == io::ErrorKind::Interrupted {
                return error;
            }
            let offset = counted.offset.saturating_sub(buffered);
            let compression = Compression::Gzip;
            match error.kind() {
                io::ErrorKind::UnexpectedEof => StreamError::Truncated {
                    compression,
                    offset,
                },
                _ => StreamError::Damaged {
                    compression,
                    offset,
                },
            }
            .into_io()
        })
    }
}

/// Counts bytes read, and separates errors of the source from errors of the codec.
struct CountingReader<R> {
    source: R,
    offset: u64,
    source_failed: bool,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let result = self.source.read(out);
        match &result {
            Ok(count) => self.offset = self.offset.saturating_add(*count as u64),
            Err(_) => self.source_failed = true,
        }
        result
    }
}

/// A member to be inflated into content; both buffers are reused.
struct InflateJob {
    member: Vec<u8>,
    content: Vec<u8>,
    result: Result<(), InvalidMember>,
}

impl InflateJob {
    fn empty() -> Self {
        Self {
            member: Vec::new(),
            content: Vec::new(),
            result: Ok(()),
        }
    }
}

/// What follows the members already submitted to the workers.
enum RemainingInput<R: Read> {
    /// More input.
    Source(R),
    /// Ordinary gzip from here on.
    PlainGzip(Box<GzipReader<Replayed<R>>>),
    /// An error, returned after all content before it; `None` once returned.
    Failed(Option<io::Error>),
    /// The end.
    End,
}

/// Reads members that carry their length, inflating several in parallel.
///
/// Memory: two members per thread, compressed and inflated, of at most [`member::MAX_MEMBER_LEN`] bytes each.
struct MemberReader<R: Read> {
    workers: WorkerPool<InflateJob, InflateJob>,
    remaining: RemainingInput<R>,
    /// The piece being returned to the caller, and the number of its bytes already returned.
    current: Option<InflateJob>,
    position: usize,
    /// Buffers to reuse.
    spare: Vec<InflateJob>,
    /// Input bytes of all members returned so far, and of all members submitted so far.
    read_offset: u64,
    submitted_offset: u64,
    /// A member was corrupt: no content after it is returned.
    is_damaged: bool,
    /// The last member was the empty one that marks the end.
    has_end_member: bool,
}

impl<R: Read> MemberReader<R> {
    fn new(source: R, threads: NonZeroUsize) -> io::Result<Self> {
        let workers = WorkerPool::start(threads, || {
            let mut decompressor = Decompressor::new();
            move |mut piece: InflateJob| {
                piece.result =
                    member::inflate_member(&mut decompressor, &piece.member, &mut piece.content);
                piece
            }
        })?;
        Ok(Self {
            workers,
            remaining: RemainingInput::Source(source),
            current: None,
            position: 0,
            spare: Vec::new(),
            read_offset: 0,
            submitted_offset: 0,
            is_damaged: false,
            has_end_member: false,
        })
    }

    /// Submits members until the workers are busy.
    fn submit_members(&mut self) -> Result<(), WorkerPanicked> {
        while self.workers.has_room() {
            let RemainingInput::Source(source) = &mut self.remaining else {
                return Ok(());
            };
            let mut piece = self.spare.pop().unwrap_or_else(InflateJob::empty);
            match read_next_member(source, &mut piece.member, self.submitted_offset) {
                Ok(NextMember::Member) => {
                    let size = piece.member.len() as u64;
                    self.submitted_offset = self.submitted_offset.saturating_add(size);
                    self.workers.submit(piece)?;
                }
                Ok(NextMember::End) => self.remaining = RemainingInput::End,
                Ok(NextMember::Foreign(header)) => {
                    let RemainingInput::Source(source) =
                        std::mem::replace(&mut self.remaining, RemainingInput::End)
                    else {
                        return Ok(());
                    };
                    let replayed = Cursor::new(header).chain(source);
                    let stream = GzipReader::new(replayed, self.submitted_offset);
                    self.remaining = RemainingInput::PlainGzip(Box::new(stream));
                }
                Err(error) => self.remaining = RemainingInput::Failed(Some(error)),
            }
        }
        Ok(())
    }

    fn truncated_error(&self) -> io::Error {
        let offset = self.read_offset;
        StreamError::Truncated {
            compression: Compression::Gzip,
            offset,
        }
        .into_io()
    }

    fn damaged_error(&self) -> io::Error {
        let offset = self.read_offset;
        StreamError::Damaged {
            compression: Compression::Gzip,
            offset,
        }
        .into_io()
    }

    /// Makes the next piece current; `false` when no member is pending.
    fn advance(&mut self) -> io::Result<bool> {
        self.spare.extend(self.current.take());
        self.position = 0;
        let stopped = |WorkerPanicked| {
            StreamError::WorkerStopped {
                compression: Compression::Gzip,
            }
            .into_io()
        };
        self.submit_members().map_err(stopped)?;
        let Some(piece) = self.workers.receive().map_err(stopped)? else {
            return Ok(false);
        };
        self.read_offset = self.read_offset.saturating_add(piece.member.len() as u64);
        if piece.result.is_err() {
            self.is_damaged = true;
            return Err(self.damaged_error());
        }
        self.has_end_member = piece.content.is_empty();
        self.current = Some(piece);
        Ok(true)
    }
}

impl<R: Read> Read for MemberReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(piece) = &self.current {
                let mut rest = piece.content.get(self.position..).unwrap_or_default();
                if !rest.is_empty() {
                    let count = rest.read(out)?;
                    self.position += count;
                    return Ok(count);
                }
            }
            if self.is_damaged {
                return Err(self.damaged_error());
            }
            if self.advance()? {
                continue;
            }
            return match &mut self.remaining {
                RemainingInput::PlainGzip(stream) => stream.read(out),
                RemainingInput::Failed(error) => {
                    let error = error.take();
                    Err(error.unwrap_or_else(|| self.damaged_error()))
                }
                // Without the empty end member the object was cut between two members.
                RemainingInput::Source(_) | RemainingInput::End if self.has_end_member => Ok(0),
                RemainingInput::Source(_) | RemainingInput::End => Err(self.truncated_error()),
            };
        }
    }
}

/// What comes next in the input.
enum NextMember {
    /// A member that carries its length, now in the buffer.
    Member,
    /// End of input.
    End,
    /// Other data; these bytes of it were read.
    Foreign(Vec<u8>),
}

fn read_next_member(
    source: &mut impl Read,
    member: &mut Vec<u8>,
    offset: u64,
) -> io::Result<NextMember> {
    let header = read_header(source)?;
    if header.is_empty() {
        return Ok(NextMember::End);
    }
    let Some(size) = header.first_chunk().and_then(member::parse_member_size) else {
        return Ok(NextMember::Foreign(header));
    };
    member.clear();
    member.extend_from_slice(&header);
    source
        .take((size - HEADER_LEN) as u64)
        .read_to_end(member)?;
    if member.len() < size {
        let offset = offset.saturating_add(member.len() as u64);
        return Err(StreamError::Truncated {
            compression: Compression::Gzip,
            offset,
        }
        .into_io());
    }
    Ok(NextMember::Member)
}
