//! The requests that the election is based on: status, and a linearizable read.

use std::time::Duration;

use etcd_client::GetOptions;
use mainstay_etcd::{MemberStatus, RequestError};
use mainstay_ids::Revision;

use super::client::{EtcdClient, with_timeout};
use super::error::{EtcdCall, EtcdError};

/// Any key: only the header of the response is used.
const ANY_KEY: &str = "mainstay";

impl EtcdClient {
    /// Status of this sidecar's member. The member answers without a quorum, so a partitioned one may still report itself
    /// as leader: see [`EtcdClient::read_quorum_revision`].
    pub(crate) async fn fetch_status(&self, limit: Duration) -> Result<MemberStatus, EtcdError> {
        let request = async {
            let mut client = self.own_client().await?;
            let status = mainstay_etcd::fetch_status(&mut client, limit).await;
            status.map_err(EtcdError::request_failed(EtcdCall::Status))
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
            let read = mainstay_etcd::read_linearizably(&client, ANY_KEY, limit).await;
            read.map_err(EtcdError::request_failed(EtcdCall::Read))
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

    /// Applies the deadline to the connection as well. Boxed for the reason given at [`mainstay_etcd::with_deadline`].
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
                .unwrap_or_else(|_| {
                    let source = RequestError::Timeout { limit };
                    Err(EtcdError::Request { call, source })
                });
            if response.as_ref().is_err_and(EtcdError::is_request_failure) {
                self.drop_connection().await;
            }
            response
        }
    }
}
