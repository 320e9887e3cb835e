//! The requests that the election is based on: status, and a linearizable read.

use std::time::Duration;

use etcd_client::GetOptions;
use jiff::Timestamp;
use mainstay_ids::{ClusterId, MemberId, Revision};

use super::client::{EtcdClient, with_timeout};
use super::error::{EtcdCall, EtcdError};
use crate::state::MemberStatus;

/// Any key: only the header of the response is used.
const ANY_KEY: &str = "mainstay";

impl EtcdClient {
    /// Status of this sidecar's member. The member answers without a quorum, so a partitioned one may still report itself
    /// as leader: see [`EtcdClient::read_quorum_revision`].
    pub(crate) async fn fetch_status(&self, limit: Duration) -> Result<MemberStatus, EtcdError> {
        let request = async {
            let mut client = self.own_client().await?;
            let status = client.status();
            let status = with_timeout(limit, EtcdCall::Status, status).await?;
            let header = status.header().ok_or(EtcdError::MissingField {
                call: EtcdCall::Status,
                what: "header",
            })?;
            let leader = status.leader();
            Ok(MemberStatus {
                member: MemberId(header.member_id()),
                cluster: ClusterId(header.cluster_id()),
                leader: (leader != 0).then_some(MemberId(leader)),
                term: status.raft_term(),
                revision: Revision(header.revision()),
                is_learner: status.is_learner(),
                db_bytes: to_size(status.db_size()),
                db_bytes_in_use: to_size(status.raft_used_db_size()),
                version: status.version().to_owned(),
                errors: status.errors().to_vec(),
                observed_at: Timestamp::now(),
            })
        };
        self.with_deadline(limit, EtcdCall::Status, request).await
    }

    /// Latest revision by a linearizable read. Fails on a member without quorum.
    pub(crate) async fn read_quorum_revision(
        &self,
        limit: Duration,
    ) -> Result<Revision, EtcdError> {
        let request = async {
            let client = self.own_client().await?;
            let mut kv = client.kv_client();
            let options = GetOptions::new().with_count_only();
            let response = kv.get(ANY_KEY, Some(options));
            let response = with_timeout(limit, EtcdCall::Read, response).await?;
            let header = response.header().ok_or(EtcdError::MissingField {
                call: EtcdCall::Read,
                what: "header",
            })?;
            Ok(Revision(header.revision()))
        };
        self.with_deadline(limit, EtcdCall::Read, request).await
    }

    /// Whether the events after a revision can still be watched, i.e. it is not compacted.
    pub(crate) async fn has_history_after(
        &self,
        revision: Revision,
        limit: Duration,
    ) -> Result<bool, EtcdError> {
        let request = async {
            let client = self.own_client().await?;
            let mut kv = client.kv_client();
            let options = GetOptions::new()
                .with_count_only()
                // The member's own compaction counts, since the watch reads from it.
                .with_serializable()
                .with_revision(revision.0);
            with_timeout(limit, EtcdCall::Read, kv.get(ANY_KEY, Some(options))).await
        };
        match self.with_deadline(limit, EtcdCall::Read, request).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_compacted() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Applies the deadline to the connection as well. Boxed for the reason given at [`with_timeout`].
    fn with_deadline<T>(
        &self,
        limit: Duration,
        call: EtcdCall,
        request: impl Future<Output = Result<T, EtcdError>>,
    ) -> impl Future<Output = Result<T, EtcdError>> {
        let request = Box::pin(request);
        async move {
            let response = tokio::time::timeout(limit, request)
                .await
                .unwrap_or(Err(EtcdError::Timeout { call, limit }));
            if response.as_ref().is_err_and(EtcdError::is_request_failure) {
                self.drop_connection().await;
            }
            response
        }
    }
}

fn to_size(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or_default()
}
