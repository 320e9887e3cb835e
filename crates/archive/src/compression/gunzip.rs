//! Gzip: a row of our own members on several threads, anything else as one stream.
//!
//! ```text
//! source ─► 20 bytes ─┬ ours ─► member bytes ─► lanes ─► content, in order
//!                     └ not ours, or too long ─► ordinary gzip from here to the end
//! ```

use std::io::{self, BufReader, Chain, Cursor, Read};
use std::num::NonZeroUsize;

use flate2::bufread::MultiGzDecoder;
use libdeflater::Decompressor;

use super::lanes::{WorkerPanicked, WorkerPool};
use super::member::{self, InvalidMember, HEADER_LEN};
use super::{Compression, READ_AHEAD, StreamError};

/// A source with the bytes that were looked at put back in front.
type Replayed<R> = Chain<Cursor<Vec<u8>>, R>;

/// Looks at the first member and picks the way to read.
pub(super) fn open<R: Read + Send + 'static>(
    mut source: R,
    threads: NonZeroUsize,
) -> io::Result<Box<dyn Read + Send>> {
    let start = read_header(&mut source)?;
    let ours = start.first_chunk().and_then(member::parse_member_size).is_some();
    let source = Cursor::new(start).chain(source);
    if ours {
        Ok(Box::new(MemberReader::new(source, threads)?))
    } else {
        Ok(Box::new(GzipReader::new(source, 0)))
    }
}

/// Up to one header; shorter only where the source ends.
fn read_header(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(HEADER_LEN);
    let limit = u64::try_from(HEADER_LEN).unwrap_or(u64::MAX);
    source.take(limit).read_to_end(&mut start)?;
    Ok(start)
}

/// Ordinary gzip of any number of members, whose damage is told as a [`StreamError`].
struct GzipReader<R: Read>(MultiGzDecoder<BufReader<CountingReader<R>>>);

impl<R: Read> GzipReader<R> {
    /// `offset` is what lies before `source` in the whole input.
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

/// Counts what was read, and tells the source's own errors from the codec's.
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

/// A member on its way: compressed bytes in, content out; both buffers are used again.
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

/// What follows the members already given to the lanes.
enum RemainingInput<R: Read> {
    /// More input.
    Source(R),
    /// Ordinary gzip from here on.
    PlainGzip(Box<GzipReader<Replayed<R>>>),
    /// An error, to be told when everything before it was handed out; `None` once it was told.
    Failed(Option<io::Error>),
    /// The end.
    End,
}

/// Reads members of our own making, inflating several at once.
///
/// Memory: two members for each thread, compressed and inflated, of at most [`member::LIMIT`] bytes each.
struct MemberReader<R: Read> {
    workers: WorkerPool<InflateJob, InflateJob>,
    remaining: RemainingInput<R>,
    /// The piece being handed out, and how much of it was.
    current: Option<InflateJob>,
    position: usize,
    /// Buffers to use again.
    spare: Vec<InflateJob>,
    /// Bytes of input behind every member given or handed out.
    read_offset: u64,
    submitted_offset: u64,
    /// A member was bad: nothing behind it is handed out.
    is_damaged: bool,
    /// The last member was the empty one that ends a row.
    has_end_member: bool,
}

impl<R: Read> MemberReader<R> {
    fn new(source: R, threads: NonZeroUsize) -> io::Result<Self> {
        let lanes = WorkerPool::start(threads, || {
            let mut decompressor = Decompressor::new();
            move |mut piece: InflateJob| {
                piece.result =
                    member::inflate_member(&mut decompressor, &piece.member, &mut piece.content);
                piece
            }
        })?;
        Ok(Self {
            workers: lanes,
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

    /// Gives the lanes as much as they take.
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
                    let RemainingInput::Source(source) = std::mem::replace(&mut self.remaining, RemainingInput::End)
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

    /// Makes the next piece current; `false` when no member is left.
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
                RemainingInput::Source(_) | RemainingInput::End if self.has_end_member => Ok(0),
                RemainingInput::Source(_) | RemainingInput::End => Err(self.truncated_error()),
            };
        }
    }
}

/// What stands next in the input.
enum NextMember {
    /// A member of ours, now in the buffer.
    Member,
    /// Nothing.
    End,
    /// Something else, of which these bytes were read.
    Foreign(Vec<u8>),
}

fn read_next_member(source: &mut impl Read, member: &mut Vec<u8>, offset: u64) -> io::Result<NextMember> {
    let header = read_header(source)?;
    if header.is_empty() {
        return Ok(NextMember::End);
    }
    let Some(size) = header.first_chunk().and_then(member::parse_member_size) else {
        return Ok(NextMember::Foreign(header));
    };
    member.clear();
    member.extend_from_slice(&header);
    source.take((size - HEADER_LEN) as u64).read_to_end(member)?;
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
