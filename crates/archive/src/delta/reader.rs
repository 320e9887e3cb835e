//! Reads a delta event by event.
//!
//! ```text
//! stream ─► window ─► element ─┬ fast ────┐
//!           sha-256            └ general ─┴► numbers, base64 ─► verify ─► Event
//! ```

use std::io::Read;

use base64_simd::{AsOut, STANDARD};
use mainstay_ids::Revision;

use super::general::Extent;
use super::window::{Refill, Window};
use super::{
    DeltaError, Event, EventFault, EventHeader, EventPosition, MAX_EVENT_LEN, fast, general,
};

/// Reads the events of one delta from its decompressed stream.
///
/// Events are unverified until the end: only `Ok(None)` means that the text is complete and its hash matches.
/// After a failed call, every later call fails.
///
/// Memory: one chunk (512 KiB) or, for a larger event, a few times its JSON text, plus its decoded key and value.
/// Events longer than [`MAX_EVENT_LEN`] are rejected.
pub struct DeltaReader<R> {
    window: Window<R>,
    state: ReaderState,
    event_count: u64,
    previous: Revision,
    decoded: DecodedEvent,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReaderState {
    /// Before the opening bracket.
    Start,
    /// After the opening bracket.
    FirstElement,
    /// After an element.
    AfterElement,
    /// The hash matched.
    End,
    /// An error was returned.
    Failed,
}

/// The bytes of the current event, in reused buffers.
#[derive(Default)]
struct DecodedEvent {
    key: DecodeBuffer,
    value: DecodeBuffer,
    time: String,
}

impl DecodedEvent {
    /// Decodes an element in the fast form; `None` when a string in it is not valid base64 or UTF-8.
    fn decode_fast(
        &mut self,
        text: &[u8],
        parts: &fast::ElementParts,
    ) -> Option<Result<EventHeader, EventFault>> {
        self.key.decode(text.get(parts.key.clone())?)?;
        self.value.decode(text.get(parts.value.clone())?)?;
        self.time.clear();
        self.time
            .push_str(std::str::from_utf8(text.get(parts.time.clone())?).ok()?);
        Some(EventHeader::verify(parts.numbers, self.key.get()))
    }

    /// Decodes an element in any form.
    fn decode_general(
        &mut self,
        element: &general::ParsedElement<'_>,
    ) -> Result<EventHeader, EventFault> {
        self.key
            .decode(element.key.as_bytes())
            .ok_or(EventFault::Base64("key"))?;
        self.value
            .decode(element.value.as_bytes())
            .ok_or(EventFault::Base64("value"))?;
        self.time.clear();
        self.time.push_str(&element.time);
        EventHeader::verify(element.numbers, self.key.get())
    }
}

/// A buffer for decoded bytes that never shrinks.
#[derive(Default)]
struct DecodeBuffer {
    bytes: Vec<u8>,
    length: usize,
}

impl DecodeBuffer {
    fn get(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Replaces the content with the decoded text; `None` when the text is not base64.
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
    /// Reads from a decompressed stream, in large pieces; the stream needs no buffer around it.
    pub fn new(stream: R) -> Self {
        Self {
            window: Window::new(stream),
            state: ReaderState::Start,
            event_count: 0,
            previous: Revision(0),
            decoded: DecodedEvent::default(),
        }
    }

    /// Returns the next event; `None` once all events were read and the hash matches.
    ///
    /// # Errors
    ///
    /// [`DeltaError`] with byte position and event number.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, DeltaError> {
        let step = match self.state {
            ReaderState::End => return Ok(None),
            ReaderState::Failed => {
                return Err(DeltaError::AlreadyFailed {
                    offset: self.window.offset(),
                });
            }
            ReaderState::Start | ReaderState::FirstElement | ReaderState::AfterElement => {
                self.read_next()
            }
        };
        self.state = match &step {
            Ok(Some(_)) => ReaderState::AfterElement,
            Ok(None) => ReaderState::End,
            Err(_) => ReaderState::Failed,
        };
        let DecodedEvent { key, value, time } = &self.decoded;
        Ok(step?.map(|header| header.into_event(key.get(), value.get(), time)))
    }

    /// Returns the number of events read so far.
    pub fn event_count(&self) -> u64 {
        self.event_count
    }

    /// Reads the next element into the buffers; `None` at the end, after the hash matched.
    fn read_next(&mut self) -> Result<Option<EventHeader>, DeltaError> {
        if self.state == ReaderState::Start {
            let found = self.peek()?;
            if found != b'[' {
                return Err(self.unexpected_byte_error("'['", found));
            }
            self.window.consume(1);
            self.state = ReaderState::FirstElement;
        }
        match (self.state, self.peek()?) {
            (_, b']') => {
                self.window.consume(1);
                return self.verify_end().map(|()| None);
            }
            (ReaderState::AfterElement, b',') => {
                self.window.consume(1);
                self.peek()?;
            }
            (ReaderState::AfterElement, found) => {
                return Err(self.unexpected_byte_error("',' or ']'", found));
            }
            _ => {}
        }
        let place = self.position();
        let header = self.parse_element()?;
        let found = Revision(header.numbers.mod_revision);
        // etcd sends events in commit order, so a lower revision means a corrupt or forged delta.
        if found < self.previous {
            let fault = EventFault::Descending {
                previous: self.previous,
                found,
            };
            return Err(DeltaError::InvalidEvent { place, fault });
        }
        self.previous = found;
        self.event_count = self.event_count.saturating_add(1);
        Ok(Some(header))
    }

    /// Returns the next byte that is not white space, without consuming it.
    fn peek(&mut self) -> Result<u8, DeltaError> {
        loop {
            self.skip_whitespace();
            if let Some(&byte) = self.window.text().first() {
                return Ok(byte);
            }
            if self.window.refill()? != Refill::More {
                return Err(DeltaError::Truncated {
                    place: self.position(),
                });
            }
        }
    }

    /// After the closing bracket: only the hash may follow.
    fn verify_end(&mut self) -> Result<(), DeltaError> {
        loop {
            self.skip_whitespace();
            if let Some(&found) = self.window.text().first() {
                return Err(self.unexpected_byte_error("the end of the text", found));
            }
            if self.window.refill()? != Refill::More {
                break;
            }
        }
        if self.window.hash_matches() {
            return Ok(());
        }
        Err(DeltaError::HashMismatch {
            length: self.window.offset(),
            events: self.event_count,
        })
    }

    /// Reads the next element, in the fast form or any other.
    fn parse_element(&mut self) -> Result<EventHeader, DeltaError> {
        loop {
            let text = self.window.text();
            if let Some(parts) = fast::scan_element(text)
                && let Some(header) = self.decoded.decode_fast(text, &parts)
            {
                return self.consume_element(parts.length, header);
            }
            match general::find_extent(text) {
                Extent::Complete(length) => {
                    let element = general::parse_element(text.get(..length).unwrap_or_default())
                        .map_err(|source| DeltaError::InvalidElement {
                            place: self.position(),
                            source,
                        })?;
                    let header = element.and_then(|e| self.decoded.decode_general(&e));
                    return self.consume_element(length, header);
                }
                Extent::Invalid(position) => {
                    let found = text.get(position).copied().unwrap_or_default();
                    return Err(self.unexpected_byte_error("an event", found));
                }
                Extent::Partial => match self.window.refill()? {
                    Refill::More => {}
                    Refill::End => {
                        return Err(DeltaError::Truncated {
                            place: self.position(),
                        });
                    }
                    Refill::Full => return Err(self.too_long_error()),
                },
            }
        }
    }

    /// Consumes an element that was parsed.
    fn consume_element(
        &mut self,
        length: usize,
        header: Result<EventHeader, EventFault>,
    ) -> Result<EventHeader, DeltaError> {
        if length > MAX_EVENT_LEN {
            return Err(self.too_long_error());
        }
        let header = header.map_err(|fault| DeltaError::InvalidEvent {
            place: self.position(),
            fault,
        })?;
        self.window.consume(length);
        Ok(header)
    }

    fn skip_whitespace(&mut self) {
        let is_space = |b: &&u8| matches!(b, b' ' | b'\n' | b'\r' | b'\t');
        let count = self.window.text().iter().take_while(is_space).count();
        self.window.consume(count);
    }

    fn position(&self) -> EventPosition {
        EventPosition {
            offset: self.window.offset(),
            event: self.event_count,
        }
    }

    fn too_long_error(&self) -> DeltaError {
        DeltaError::TooLong {
            place: self.position(),
            limit: MAX_EVENT_LEN,
        }
    }

    fn unexpected_byte_error(&self, expected: &'static str, found: u8) -> DeltaError {
        DeltaError::UnexpectedByte {
            place: self.position(),
            expected,
            found,
        }
    }
}
