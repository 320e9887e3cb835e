//! Divides large responses for clients that asked for it.

use prost::Message;

use crate::proto::etcdserverpb::WatchResponse;

/// Divides the events of a response so that each part stays below `limit`, as far as single events do. All parts but
/// the last are marked.
pub(super) fn fragments(response: WatchResponse, limit: usize) -> Vec<WatchResponse> {
    if response.events.len() < 2 || limit == usize::MAX || response.encoded_len() < limit {
        return vec![response];
    }
    let WatchResponse { events, .. } = response;
    let empty = WatchResponse {
        events: Vec::new(),
        ..response
    };
    let around = empty.encoded_len();
    let mut parts: Vec<WatchResponse> = Vec::new();
    let mut bytes = usize::MAX;
    for event in events {
        const FRAME: usize = 6; // tag and length of one event
        let size = event.encoded_len() + FRAME;
        match parts.last_mut() {
            Some(part) if bytes.saturating_add(size) < limit => {
                bytes += size;
                part.events.push(event);
            }
            _ => {
                bytes = around + size;
                parts.push(WatchResponse {
                    fragment: true,
                    events: vec![event],
                    ..empty.clone()
                });
            }
        }
    }
    if let Some(last) = parts.last_mut() {
        last.fragment = false;
    }
    parts
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::proto::mvccpb::{Event, KeyValue};

    fn event(bytes: usize) -> Event {
        let kv = KeyValue {
            value: Bytes::from(vec![7; bytes]),
            ..KeyValue::default()
        };
        Event {
            kv: Some(kv),
            ..Event::default()
        }
    }

    #[test]
    fn parts_stay_below_the_limit_and_only_the_last_is_unmarked() {
        let events: Vec<Event> = [400, 400, 400, 3000, 1, 1].map(event).to_vec();
        let response = WatchResponse {
            watch_id: 3,
            events: events.clone(),
            ..WatchResponse::default()
        };
        let parts = fragments(response, 1000);
        let sizes: Vec<usize> = parts.iter().map(|part| part.events.len()).collect();
        assert_eq!(sizes, [2, 1, 1, 2]);
        let marks: Vec<bool> = parts.iter().map(|part| part.fragment).collect();
        assert_eq!(marks, [true, true, true, false]);
        assert!(parts.iter().all(|part| part.watch_id == 3));
        let joined: Vec<Event> = parts.into_iter().flat_map(|part| part.events).collect();
        assert_eq!(joined, events);
    }

    #[test]
    fn small_response_is_not_divided() {
        let response = WatchResponse {
            events: vec![event(1), event(2)],
            ..WatchResponse::default()
        };
        assert_eq!(fragments(response.clone(), 1000), [response]);
    }
}
