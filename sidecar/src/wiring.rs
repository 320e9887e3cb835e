//! Where one part's port meets another part.

use std::time::Duration;

use async_trait::async_trait;
use steward_ids::MemberId;
use url::Url;

use crate::etcd::{Etcd, EtcdError, Step, within};
use crate::http::{FindLeader, LeaderError};

/// Finds the leader through the own member.
pub(crate) struct LeaderAt {
    /// The etcd beside this sidecar.
    pub(crate) etcd: Etcd,
    /// How long to wait for an answer.
    pub(crate) patience: Duration,
}

#[async_trait]
impl FindLeader for LeaderAt {
    async fn leader_client_url(&self) -> Result<Url, LeaderError> {
        let ask = |error: EtcdError| LeaderError::Ask {
            source: Box::new(error),
        };
        let sighting = self.etcd.sight(self.patience).await.map_err(ask)?;
        let leader = sighting.leader.ok_or(LeaderError::NoLeader)?;
        let mut client = self.etcd.own().await.map_err(ask)?;
        let listed = within(self.patience, Step::Members, client.member_list());
        let listed = listed.await.map_err(ask)?;
        let member = listed.members().iter().find(|m| MemberId(m.id()) == leader);
        let mut urls = member.into_iter().flat_map(|m| m.client_urls());
        let url = urls.find_map(|url| Url::parse(url).ok());
        url.ok_or(LeaderError::NoClientUrl { leader })
    }
}
