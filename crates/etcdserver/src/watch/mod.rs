//! Service Watch.

mod fragment;
mod respond;
mod stream;

use std::pin::Pin;

use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use self::stream::WatchStream;
use crate::front::Front;
use crate::proto::etcdserverpb::watch_server::Watch;
use crate::proto::etcdserverpb::{WatchRequest, WatchResponse};

/// Messages that wait for a client. With the page size of the engine they bound the memory of a stream.
const QUEUE: usize = 8;

#[tonic::async_trait]
impl Watch for Front {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (out, responses) = mpsc::channel(QUEUE);
        let stream = WatchStream::new(self.clone(), out);
        // It ends when the client does, when the server drains, or when the client stops reading for good.
        tokio::spawn(stream.run(request.into_inner()));
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}
