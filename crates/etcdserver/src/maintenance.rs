//! Service Maintenance.

use std::fs::File;
use std::io::Read;
use std::pin::Pin;

use bytes::Bytes;
use futures::Stream;
use mainstay_ids::Revision;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::error::EtcdError;
use crate::front::{Front, RAFT_TERM, SERVED_VERSION, failed};
use crate::proto::etcdserverpb::alarm_request::AlarmAction;
use crate::proto::etcdserverpb::maintenance_server::Maintenance;
use crate::proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    HashKvRequest, HashKvResponse, HashRequest, HashResponse, ResponseHeader, SnapshotRequest,
    SnapshotResponse, StatusRequest, StatusResponse,
};

/// Size of a message of a snapshot.
const CHUNK: usize = 64 * 1024;
/// Messages that wait for a client.
const QUEUE: usize = 4;

impl Front {
    async fn is_full(&self) -> Result<bool, Status> {
        let size = self.engine.size().await.map_err(failed)?;
        Ok(self
            .options
            .quota_bytes
            .is_some_and(|quota| size.in_use_bytes >= quota))
    }

    async fn alarms(&self) -> Result<Vec<AlarmMember>, Status> {
        let alarm = AlarmMember {
            member_id: self.member.0,
            alarm: AlarmType::Nospace as i32,
        };
        Ok(if self.is_full().await? {
            vec![alarm]
        } else {
            Vec::new()
        })
    }
}

#[tonic::async_trait]
impl Maintenance for Front {
    type SnapshotStream = Pin<Box<dyn Stream<Item = Result<SnapshotResponse, Status>> + Send>>;

    /// The alarm follows the quota: it is raised while puts are refused, and needs no disarming.
    async fn alarm(
        &self,
        request: Request<AlarmRequest>,
    ) -> Result<Response<AlarmResponse>, Status> {
        if request.into_inner().action() == AlarmAction::Activate {
            return Err(Status::unimplemented(
                "etcdserver: alarms are raised by the quota only",
            ));
        }
        Ok(Response::new(AlarmResponse {
            header: self.current_header(),
            alarms: self.alarms().await?,
        }))
    }

    async fn status(
        &self,
        _request: Request<StatusRequest>,
    ) -> Result<Response<StatusResponse>, Status> {
        let size = self.engine.size().await.map_err(failed)?;
        let progress = self.engine.progress();
        let errors = if self.is_full().await? {
            vec![format!("memberID:{} alarm:NOSPACE ", self.member.0)]
        } else {
            Vec::new()
        };
        let index = progress.current.0.unsigned_abs();
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Ok(Response::new(StatusResponse {
            header: self.header(progress.current),
            version: SERVED_VERSION.to_owned(),
            db_size: signed(size.total_bytes),
            leader: self.member.0,
            raft_index: index,
            raft_term: RAFT_TERM,
            raft_applied_index: index,
            errors,
            db_size_in_use: signed(size.in_use_bytes),
            is_learner: false,
            storage_version: SERVED_VERSION.to_owned(),
            db_size_quota: signed(self.options.quota_bytes.unwrap_or(0)),
        }))
    }

    async fn defragment(
        &self,
        _request: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        self.engine.defragment().await.map_err(failed)?;
        Ok(Response::new(DefragmentResponse {
            header: self.current_header(),
        }))
    }

    async fn hash(&self, _request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        let found = self.engine.hash(None).await.map_err(failed)?;
        Ok(Response::new(HashResponse {
            header: self.header(found.progress.current),
            hash: found.hash,
        }))
    }

    async fn hash_kv(
        &self,
        request: Request<HashKvRequest>,
    ) -> Result<Response<HashKvResponse>, Status> {
        let revision = request.into_inner().revision;
        let at = (revision > 0).then_some(Revision(revision));
        let found = self.engine.hash(at).await.map_err(failed)?;
        Ok(Response::new(HashKvResponse {
            header: self.header(found.progress.current),
            hash: found.hash,
            // etcd reports -1 before the first compaction.
            compact_revision: found.progress.compacted.map_or(-1, |revision| revision.0),
            hash_revision: found.revision.0,
        }))
    }

    async fn snapshot(
        &self,
        _request: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let scratch = tempfile::NamedTempFile::new().map_err(|error| unreadable(&error))?;
        let revision = self.engine.export(scratch.path()).await.map_err(failed)?;
        let header = self.header(revision);
        let (out, responses) = mpsc::channel(QUEUE);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = send_file(scratch.path(), header.as_ref(), &out) {
                // The client sees the error, or is gone.
                let _ = out.blocking_send(Err(unreadable(&error)));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }
}

fn unreadable(error: &std::io::Error) -> Status {
    tracing::error!(error = %error, "failed to write or read the scratch file of a snapshot");
    EtcdError::TIMEOUT.status()
}

/// Sends the file and, as etcd does, its SHA-256 at the end.
fn send_file(
    path: &std::path::Path,
    header: Option<&ResponseHeader>,
    out: &mpsc::Sender<Result<SnapshotResponse, Status>>,
) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let mut remaining = file.metadata()?.len();
    let mut digest = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let response = |remaining_bytes: u64, blob: Bytes| SnapshotResponse {
        header: header.copied(),
        remaining_bytes,
        blob,
        version: SERVED_VERSION.to_owned(),
    };
    loop {
        let read = file.read(&mut buffer)?;
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else {
            break;
        };
        digest.update(chunk);
        remaining = remaining.saturating_sub(chunk.len() as u64);
        let message = response(remaining, Bytes::copy_from_slice(chunk));
        if out.blocking_send(Ok(message)).is_err() {
            return Ok(()); // the client is gone
        }
    }
    let trailer = response(0, Bytes::copy_from_slice(&digest.finalize()));
    let _ = out.blocking_send(Ok(trailer));
    Ok(())
}
