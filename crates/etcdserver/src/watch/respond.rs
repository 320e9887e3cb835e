//! Events on the wire.

use bytes::Bytes;
use mainstay_engine::ChangeEvent;

use crate::kv::key_value;
use crate::proto::etcdserverpb::WatchCreateRequest;
use crate::proto::etcdserverpb::watch_create_request::FilterType;
use crate::proto::mvccpb::event::EventType;
use crate::proto::mvccpb::{Event, KeyValue};

/// Kinds of events a watch does not want.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filters {
    no_put: bool,
    no_delete: bool,
}

impl Filters {
    pub(super) fn of(request: &WatchCreateRequest) -> Self {
        let has = |filter: FilterType| request.filters.contains(&(filter as i32));
        Self {
            no_put: has(FilterType::Noput),
            no_delete: has(FilterType::Nodelete),
        }
    }

    pub(super) fn pass(self, event: &ChangeEvent) -> bool {
        if event.is_delete {
            !self.no_delete
        } else {
            !self.no_put
        }
    }
}

pub(super) fn event(event: ChangeEvent) -> Event {
    let kv = if event.is_delete {
        KeyValue {
            key: event.version.key,
            mod_revision: event.version.mod_revision.0,
            value: Bytes::new(),
            ..KeyValue::default()
        }
    } else {
        key_value(event.version)
    };
    let kind = if event.is_delete {
        EventType::Delete
    } else {
        EventType::Put
    };
    Event {
        r#type: kind as i32,
        kv: Some(kv),
        prev_kv: event.previous.map(key_value),
    }
}
