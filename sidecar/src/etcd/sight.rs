//! The two questions the election rests on.

use std::time::Duration;

use etcd_client::GetOptions;
use jiff::Timestamp;
use mainstay_ids::{ClusterId, MemberId, Revision};

use super::connect::{EtcdClient, with_timeout};
use super::error::{EtcdError, EtcdCall};
use crate::state::MemberStatus;

/// A key that need not exist: only the header of the answer counts.
const ANY_KEY: &str = "mainstay";

impl EtcdClient {
    /// What the own member says about itself. It answers alone, so a member cut off from the others
    /// may still call itself leader for a moment: see [`Etcd::confirm`].
    pub async fn fetch_status(&self, limit: Duration) -> Result<MemberStatus, EtcdError> {
        let asked = async {
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
        self.with_deadline(limit, EtcdCall::Status, asked).await
    }

    /// The newest revision a quorum agrees on. Fails on a member that is cut off.
    pub async fn read_quorum_revision(&self, limit: Duration) -> Result<Revision, EtcdError> {
        let asked = async {
            let client = self.own_client().await?;
            let mut kv = client.kv_client();
            let options = GetOptions::new().with_count_only();
            let answer = kv.get(ANY_KEY, Some(options));
            let answer = with_timeout(limit, EtcdCall::Read, answer).await?;
            let header = answer.header().ok_or(EtcdError::MissingField {
                call: EtcdCall::Read,
                what: "header",
            })?;
            Ok(Revision(header.revision()))
        };
        self.with_deadline(limit, EtcdCall::Read, asked).await
    }

    /// Whether the own member can still tell all that happened after a revision: it has not been compacted.
    pub async fn has_history_after(
        &self,
        revision: Revision,
        limit: Duration,
    ) -> Result<bool, EtcdError> {
        let asked = async {
            let client = self.own_client().await?;
            let mut kv = client.kv_client();
            let options = GetOptions::new()
                .with_count_only()
                .with_serializable()
                .with_revision(revision.0);
            with_timeout(limit, EtcdCall::Read, kv.get(ANY_KEY, Some(options))).await
        };
        match self.with_deadline(limit, EtcdCall::Read, asked).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_compacted() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Connecting counts, too. Boxed for the reason [`within`] gives.
    fn with_deadline<T>(
        &self,
        limit: Duration,
        step: EtcdCall,
        asked: impl Future<Output = Result<T, EtcdError>>,
    ) -> impl Future<Output = Result<T, EtcdError>> {
        let asked = Box::pin(asked);
        async move {
            let answer = tokio::time::timeout(limit, asked)
                .await
                .unwrap_or(Err(EtcdError::Timeout { call: step, limit }));
            if answer.as_ref().is_err_and(EtcdError::is_request_failure) {
                self.drop_connection().await;
            }
            answer
        }
    }
}

fn to_size(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or_default()
}
