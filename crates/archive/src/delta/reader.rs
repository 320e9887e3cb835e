//! Reads a delta event by event.
//!
//! ```text
//! stream ─► window ─► element ─┬ fast ────┐
//!           sha-256            └ general ─┴► numbers, base64 ─► believe ─► Event
//! ```

use std::io::Read;

use base64_simd::{AsOut, STANDARD};
use mainstay_ids::Revision;

use super::general::Extent;
use super::window::{Refill, Window};
use super::{DeltaError, Event, EventFault, Header, MAX_EVENT, Place, fast, general};

/// Reads the events of one delta from its decompressed stream.
///
/// Nothing read is proven before the end: only `Ok(None)` says that the text was whole and its hash right.
/// Once a call failed, every later one fails.
///
/// Memory: one chunk (512 KiB) or, where an event is larger, a few times its JSON text, plus its
/// decoded key and value. No event longer than [`MAX_EVENT`] is accepted.
pub struct DeltaReader<R> {
    window: Window<R>,
    state: State,
    events: u64,
    previous: Revision,
    decoded: Decoded,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the opening bracket.
    Start,
    /// Behind the opening bracket.
    First,
    /// Behind an element.
    Between,
    /// The hash was right.
    End,
    /// An error was returned.
    Failed,
}

/// The bytes of the current event, in buffers that are used again.
#[derive(Default)]
struct Decoded {
    key: Scratch,
    value: Scratch,
    time: String,
}

impl Decoded {
    /// Takes over an element in the peer's form; `None` when a string in it is not what it seemed.
    fn take_fast(
        &mut self,
        text: &[u8],
        parts: &fast::Parts,
    ) -> Option<Result<Header, EventFault>> {
        self.key.decode(text.get(parts.key.clone())?)?;
        self.value.decode(text.get(parts.value.clone())?)?;
        self.time.clear();
        self.time
            .push_str(std::str::from_utf8(text.get(parts.time.clone())?).ok()?);
        Some(Header::verify(parts.numbers, self.key.get()))
    }

    /// Takes over an element in any form.
    fn take_general(&mut self, element: &general::Element<'_>) -> Result<Header, EventFault> {
        self.key
            .decode(element.key.as_bytes())
            .ok_or(EventFault::Base64("key"))?;
        self.value
            .decode(element.value.as_bytes())
            .ok_or(EventFault::Base64("value"))?;
        self.time.clear();
        self.time.push_str(&element.time);
        Header::verify(element.numbers, self.key.get())
    }
}

/// A buffer for decoded bytes that only grows.
#[derive(Default)]
struct Scratch {
    bytes: Vec<u8>,
    length: usize,
}

impl Scratch {
    fn get(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Replaces the content with the decoded text; `None` when it is not base64.
    fn decode(&mut self, text: &[u8]) -> Option<()> {
        let length = STANDARD.decoded_length(text).ok()?;
        if self.bytes.len() < length {
            self.bytes = vec![0; length.max(self.bytes.len().saturating_mul(2))];
        }
        let room = self.bytes.get_mut(..length)?;
        self.length = STANDARD.decode(text, room.as_out()).ok()?.len();
        Some(())
    }
}

impl<R: Read> DeltaReader<R> {
    /// Reads from a decompressed stream. It is read in large pieces; a buffer around it is not needed.
    pub fn new(stream: R) -> Self {
        Self {
            window: Window::new(stream),
            state: State::Start,
            events: 0,
            previous: Revision(0),
            decoded: Decoded::default(),
        }
    }

    /// The next event; `None` once all were read and the hash is right.
    ///
    /// # Errors
    ///
    /// [`DeltaError`] with the byte and the number of the event.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, DeltaError> {
        let step = match self.state {
            State::End => return Ok(None),
            State::Failed => {
                return Err(DeltaError::Failed {
                    offset: self.window.offset(),
                });
            }
            State::Start | State::First | State::Between => self.step(),
        };
        self.state = match &step {
            Ok(Some(_)) => State::Between,
            Ok(None) => State::End,
            Err(_) => State::Failed,
        };
        let Decoded { key, value, time } = &self.decoded;
        Ok(step?.map(|header| header.event(key.get(), value.get(), time)))
    }

    /// Number of events read so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Reads the next element into the buffers; `None` at a proven end.
    fn step(&mut self) -> Result<Option<Header>, DeltaError> {
        if self.state == State::Start {
            let found = self.peek()?;
            if found != b'[' {
                return Err(self.unexpected("'['", found));
            }
            self.window.consume(1);
            self.state = State::First;
        }
        match (self.state, self.peek()?) {
            (_, b']') => {
                self.window.consume(1);
                return self.close().map(|()| None);
            }
            (State::Between, b',') => {
                self.window.consume(1);
                self.peek()?;
            }
            (State::Between, found) => return Err(self.unexpected("',' or ']'", found)),
            _ => {}
        }
        let place = self.place();
        let header = self.element()?;
        let found = Revision(header.numbers.mod_revision);
        if found < self.previous {
            let fault = EventFault::Descending {
                previous: self.previous,
                found,
            };
            return Err(DeltaError::Event { place, fault });
        }
        self.previous = found;
        self.events = self.events.saturating_add(1);
        Ok(Some(header))
    }

    /// The next byte that is not white space, left in place.
    fn peek(&mut self) -> Result<u8, DeltaError> {
        loop {
            self.skip_white_space();
            if let Some(&byte) = self.window.text().first() {
                return Ok(byte);
            }
            if self.window.refill()? != Refill::More {
                return Err(DeltaError::Unclosed {
                    place: self.place(),
                });
            }
        }
    }

    /// Behind the closing bracket: nothing may follow but the hash.
    fn close(&mut self) -> Result<(), DeltaError> {
        loop {
            self.skip_white_space();
            if let Some(&found) = self.window.text().first() {
                return Err(self.unexpected("the end of the text", found));
            }
            if self.window.refill()? != Refill::More {
                break;
            }
        }
        if self.window.hash_matches() {
            return Ok(());
        }
        Err(DeltaError::Hash {
            length: self.window.offset(),
            events: self.events,
        })
    }

    /// Reads the element that begins here, whichever way can.
    fn element(&mut self) -> Result<Header, DeltaError> {
        loop {
            let text = self.window.text();
            if let Some(parts) = fast::scan(text)
                && let Some(header) = self.decoded.take_fast(text, &parts)
            {
                return self.finish(parts.length, header);
            }
            match general::extent(text) {
                Extent::Whole(length) => {
                    let element = general::parse(text.get(..length).unwrap_or_default()).map_err(
                        |source| DeltaError::Element {
                            place: self.place(),
                            source,
                        },
                    )?;
                    let header = element.and_then(|e| self.decoded.take_general(&e));
                    return self.finish(length, header);
                }
                Extent::Wrong(position) => {
                    let found = text.get(position).copied().unwrap_or_default();
                    return Err(self.unexpected("an event", found));
                }
                Extent::Partial => match self.window.refill()? {
                    Refill::More => {}
                    Refill::End => {
                        return Err(DeltaError::Unclosed {
                            place: self.place(),
                        });
                    }
                    Refill::Full => return Err(self.too_long()),
                },
            }
        }
    }

    /// Steps over an element that was read.
    fn finish(
        &mut self,
        length: usize,
        header: Result<Header, EventFault>,
    ) -> Result<Header, DeltaError> {
        if length > MAX_EVENT {
            return Err(self.too_long());
        }
        let header = header.map_err(|fault| DeltaError::Event {
            place: self.place(),
            fault,
        })?;
        self.window.consume(length);
        Ok(header)
    }

    fn skip_white_space(&mut self) {
        let is_space = |b: &&u8| matches!(b, b' ' | b'\n' | b'\r' | b'\t');
        let count = self.window.text().iter().take_while(is_space).count();
        self.window.consume(count);
    }

    fn place(&self) -> Place {
        Place {
            offset: self.window.offset(),
            event: self.events,
        }
    }

    fn too_long(&self) -> DeltaError {
        DeltaError::TooLong {
            place: self.place(),
            limit: MAX_EVENT,
        }
    }

    fn unexpected(&self, expected: &'static str, found: u8) -> DeltaError {
        DeltaError::Unexpected {
            place: self.place(),
            expected,
            found,
        }
    }
}
