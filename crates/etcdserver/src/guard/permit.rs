//! Requests in flight for each principal.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

#[derive(Debug)]
pub(super) struct InFlight {
    limit: usize,
    counts: Mutex<HashMap<String, usize>>,
}

impl InFlight {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            counts: Mutex::new(HashMap::new()),
        }
    }

    /// Counts a request of a principal, unless it has too many.
    pub(super) fn enter(self: &Arc<Self>, principal: String) -> Option<Permit> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(&principal).copied().unwrap_or(0);
        if count >= self.limit {
            return None;
        }
        counts.insert(principal.clone(), count + 1);
        Some(Permit {
            all: Arc::clone(self),
            principal,
        })
    }

    fn leave(&self, principal: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(principal) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.remove(principal);
            }
        }
    }
}

/// One request in flight.
#[derive(Debug)]
pub(super) struct Permit {
    all: Arc<InFlight>,
    principal: String,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.all.leave(&self.principal);
    }
}

/// A body that holds a permit until it is sent.
#[derive(Debug, Default)]
pub(crate) struct Permitted<B> {
    body: B,
    _permit: Option<Permit>,
}

impl<B> Permitted<B> {
    pub(super) fn new(body: B, permit: Permit) -> Self {
        Self {
            body,
            _permit: Some(permit),
        }
    }
}

impl<B: Body + Unpin> Body for Permitted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_counted_for_each_principal_and_freed() {
        let in_flight = Arc::new(InFlight::new(2));
        let first = in_flight.enter("a".to_owned());
        let second = in_flight.enter("a".to_owned());
        assert!(first.is_some() && second.is_some());
        assert!(in_flight.enter("a".to_owned()).is_none());
        assert!(in_flight.enter("b".to_owned()).is_some());
        drop(first);
        assert!(in_flight.enter("a".to_owned()).is_some());
        drop(second);
        assert!(in_flight.counts.lock().unwrap().is_empty());
    }
}
