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

use super::lanes::{LaneStopped, Lanes};
use super::member::{self, BadMember, HEADER};
use super::{Compression, READ_AHEAD, StreamError};

/// A source with the bytes that were looked at put back in front.
type Replayed<R> = Chain<Cursor<Vec<u8>>, R>;

/// Looks at the first member and picks the way to read.
pub(super) fn open<R: Read + Send + 'static>(
    mut source: R,
    threads: NonZeroUsize,
) -> io::Result<Box<dyn Read + Send>> {
    let start = read_header(&mut source)?;
    let ours = start.first_chunk().and_then(member::member_size).is_some();
    let source = Cursor::new(start).chain(source);
    if ours {
        Ok(Box::new(MemberReader::new(source, threads)?))
    } else {
        Ok(Box::new(GzipReader::new(source, 0)))
    }
}

/// Up to one header; shorter only where the source ends.
fn read_header(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(HEADER);
    let limit = u64::try_from(HEADER).unwrap_or(u64::MAX);
    source.take(limit).read_to_end(&mut start)?;
    Ok(start)
}

/// Ordinary gzip of any number of members, whose damage is told as a [`StreamError`].
struct GzipReader<R: Read>(MultiGzDecoder<BufReader<Counted<R>>>);

impl<R: Read> GzipReader<R> {
    /// `offset` is what lies before `source` in the whole input.
    fn new(source: R, offset: u64) -> Self {
        let counted = Counted {
            source,
            offset,
            failed: false,
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
            if counted.failed || error.kind() == io::ErrorKind::Interrupted {
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
struct Counted<R> {
    source: R,
    offset: u64,
    failed: bool,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let result = self.source.read(out);
        match &result {
            Ok(count) => self.offset = self.offset.saturating_add(*count as u64),
            Err(_) => self.failed = true,
        }
        result
    }
}

/// A member on its way: compressed bytes in, content out; both buffers are used again.
struct Piece {
    member: Vec<u8>,
    content: Vec<u8>,
    outcome: Result<(), BadMember>,
}

impl Piece {
    fn empty() -> Self {
        Self {
            member: Vec::new(),
            content: Vec::new(),
            outcome: Ok(()),
        }
    }
}

/// What follows the members already given to the lanes.
enum Ahead<R: Read> {
    /// More input.
    Source(R),
    /// Ordinary gzip from here on.
    Stream(Box<GzipReader<Replayed<R>>>),
    /// An error, to be told when everything before it was handed out; `None` once it was told.
    Failed(Option<io::Error>),
    /// The end.
    End,
}

/// Reads members of our own making, inflating several at once.
///
/// Memory: two members for each thread, compressed and inflated, of at most [`member::LIMIT`] bytes each.
struct MemberReader<R: Read> {
    lanes: Lanes<Piece, Piece>,
    ahead: Ahead<R>,
    /// The piece being handed out, and how much of it was.
    current: Option<Piece>,
    position: usize,
    /// Buffers to use again.
    spare: Vec<Piece>,
    /// Bytes of input behind every member given or handed out.
    taken_offset: u64,
    given_offset: u64,
    /// A member was bad: nothing behind it is handed out.
    broken: bool,
    /// The last member was the empty one that ends a row.
    closed: bool,
}

impl<R: Read> MemberReader<R> {
    fn new(source: R, threads: NonZeroUsize) -> io::Result<Self> {
        let lanes = Lanes::start(threads, || {
            let mut decompressor = Decompressor::new();
            move |mut piece: Piece| {
                piece.outcome =
                    member::inflate(&mut decompressor, &piece.member, &mut piece.content);
                piece
            }
        })?;
        Ok(Self {
            lanes,
            ahead: Ahead::Source(source),
            current: None,
            position: 0,
            spare: Vec::new(),
            taken_offset: 0,
            given_offset: 0,
            broken: false,
            closed: false,
        })
    }

    /// Gives the lanes as much as they take.
    fn feed(&mut self) -> Result<(), LaneStopped> {
        while self.lanes.has_room() {
            let Ahead::Source(source) = &mut self.ahead else {
                return Ok(());
            };
            let mut piece = self.spare.pop().unwrap_or_else(Piece::empty);
            match next_member(source, &mut piece.member, self.given_offset) {
                Ok(Next::Member) => {
                    let size = piece.member.len() as u64;
                    self.given_offset = self.given_offset.saturating_add(size);
                    self.lanes.give(piece)?;
                }
                Ok(Next::End) => self.ahead = Ahead::End,
                Ok(Next::Other(header)) => {
                    let Ahead::Source(source) = std::mem::replace(&mut self.ahead, Ahead::End)
                    else {
                        return Ok(());
                    };
                    let replayed = Cursor::new(header).chain(source);
                    let stream = GzipReader::new(replayed, self.given_offset);
                    self.ahead = Ahead::Stream(Box::new(stream));
                }
                Err(error) => self.ahead = Ahead::Failed(Some(error)),
            }
        }
        Ok(())
    }

    fn cut_short(&self) -> io::Error {
        let offset = self.taken_offset;
        StreamError::Truncated {
            compression: Compression::Gzip,
            offset,
        }
        .into_io()
    }

    fn damaged(&self) -> io::Error {
        let offset = self.taken_offset;
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
        let stopped = |LaneStopped| {
            StreamError::Worker {
                compression: Compression::Gzip,
            }
            .into_io()
        };
        self.feed().map_err(stopped)?;
        let Some(piece) = self.lanes.take().map_err(stopped)? else {
            return Ok(false);
        };
        self.taken_offset = self.taken_offset.saturating_add(piece.member.len() as u64);
        if piece.outcome.is_err() {
            self.broken = true;
            return Err(self.damaged());
        }
        self.closed = piece.content.is_empty();
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
            if self.broken {
                return Err(self.damaged());
            }
            if self.advance()? {
                continue;
            }
            return match &mut self.ahead {
                Ahead::Stream(stream) => stream.read(out),
                Ahead::Failed(error) => {
                    let error = error.take();
                    Err(error.unwrap_or_else(|| self.damaged()))
                }
                Ahead::Source(_) | Ahead::End if self.closed => Ok(0),
                Ahead::Source(_) | Ahead::End => Err(self.cut_short()),
            };
        }
    }
}

/// What stands next in the input.
enum Next {
    /// A member of ours, now in the buffer.
    Member,
    /// Nothing.
    End,
    /// Something else, of which these bytes were read.
    Other(Vec<u8>),
}

fn next_member(source: &mut impl Read, member: &mut Vec<u8>, offset: u64) -> io::Result<Next> {
    let header = read_header(source)?;
    if header.is_empty() {
        return Ok(Next::End);
    }
    let Some(size) = header.first_chunk().and_then(member::member_size) else {
        return Ok(Next::Other(header));
    };
    member.clear();
    member.extend_from_slice(&header);
    source.take((size - HEADER) as u64).read_to_end(member)?;
    if member.len() < size {
        let offset = offset.saturating_add(member.len() as u64);
        return Err(StreamError::Truncated {
            compression: Compression::Gzip,
            offset,
        }
        .into_io());
    }
    Ok(Next::Member)
}
