//! Queries the other members for the state of the running cluster.
//!
//! All URLs are queried in parallel. The member list of a partitioned member may be stale, so one answer is chosen: that
//! of the leader first, then that of a member with a leader.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mainstay_etcd::{
    ConnectSettings, CredentialFileError, ListedMember, RequestError, TlsFiles, connect,
    fetch_status, list_members,
};
use mainstay_ids::{ClusterId, MemberId};
use mainstay_telemetry::ErrorChain;
use mainstay_verdict::{ClusterSummary, MemberRegistration};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;
use url::Url;

use super::data::ObservedDataDir;
use super::template::InitialClusterConfig;

/// Timeout of one member, including the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// URLs and certificates for reaching other members.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Other members")]
pub(crate) struct ClusterArgs {
    /// Additional client URLs to query: a Service, or a cluster to join
    ///
    /// The client URLs of the configuration template are always queried.
    #[arg(
        long,
        env = "MAINSTAY_SERVICE_ENDPOINTS",
        value_name = "URL",
        value_delimiter = ','
    )]
    pub(crate) service_endpoints: Vec<Url>,

    /// CA bundle (PEM) for https URLs
    #[arg(long, env = "MAINSTAY_CACERT", value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,

    /// Client certificate (PEM)
    #[arg(long, env = "MAINSTAY_CERT", value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM)
    #[arg(long, env = "MAINSTAY_KEY", value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
}

/// Error of querying a member.
#[derive(Debug, thiserror::Error)]
enum MemberQueryError {
    #[error(transparent)]
    ReadFile(#[from] CredentialFileError),
    #[error("failed to connect")]
    Connect { source: RequestError },
    #[error("failed to get the status")]
    Status { source: RequestError },
    #[error("failed to list the members")]
    MemberList { source: RequestError },
    #[error("no response within {REQUEST_TIMEOUT:?}")]
    Timeout,
}

/// A member of a running cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterMember {
    pub(crate) id: MemberId,
    /// Name; empty until the member has started for the first time.
    pub(crate) name: String,
    pub(crate) peer_urls: Vec<String>,
    /// Whether the member has ever started.
    pub(crate) has_started: bool,
}

/// Response of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberResponse {
    /// The member that responded.
    pub(crate) member: MemberId,
    pub(crate) cluster: ClusterId,
    /// Leader as seen by this member; `None` without one.
    pub(crate) leader: Option<MemberId>,
    /// All members, sorted by id.
    pub(crate) members: Vec<ClusterMember>,
}

/// This member: how its entry in a member list is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalMember<'a> {
    pub(crate) name: &'a str,
    /// Advertised peer URLs.
    pub(crate) peer_urls: &'a [String],
    pub(crate) observed: &'a ObservedDataDir,
}

impl ClusterArgs {
    /// Queries all URLs in parallel and returns the responses in no particular order.
    pub(crate) async fn query_members(
        &self,
        urls: impl IntoIterator<Item = String>,
    ) -> Vec<MemberResponse> {
        let service = self.service_endpoints.iter().map(ToString::to_string);
        let mut queries = JoinSet::new();
        for url in urls.into_iter().chain(service) {
            let args = self.clone();
            queries.spawn(async move {
                let answer = timeout(REQUEST_TIMEOUT, args.query_member(&url)).await;
                (url, answer.unwrap_or(Err(MemberQueryError::Timeout)))
            });
        }
        let mut answers = Vec::new();
        while let Some(joined) = queries.join_next().await {
            match joined {
                Ok((_, Ok(answer))) => answers.push(answer),
                Ok((url, Err(error))) => {
                    debug!(url, error = %ErrorChain(&error), "member did not answer");
                }
                Err(error) => debug!(error = %error, "query task failed"),
            }
        }
        answers
    }

    async fn query_member(&self, url: &str) -> Result<MemberResponse, MemberQueryError> {
        let mut settings = ConnectSettings::new(REQUEST_TIMEOUT);
        if url.starts_with("https:") {
            let files = TlsFiles {
                ca: self.cacert.clone(),
                identity: self.cert.clone().zip(self.key.clone()),
            };
            settings.tls = Some(files.load().await?);
        }
        let client = connect(&[url], settings).await;
        let mut client = client.map_err(|source| MemberQueryError::Connect { source })?;
        let status = fetch_status(&mut client, REQUEST_TIMEOUT).await;
        let status = status.map_err(|source| MemberQueryError::Status { source })?;
        let listed = list_members(&mut client, REQUEST_TIMEOUT).await;
        let listed = listed.map_err(|source| MemberQueryError::MemberList { source })?;
        let to_member = |member: ListedMember| ClusterMember {
            id: member.id,
            name: member.name,
            peer_urls: member.peer_urls,
            // A member publishes its client URLs when it starts for the first time.
            has_started: !member.client_urls.is_empty(),
        };
        let mut members: Vec<ClusterMember> = listed.into_iter().map(to_member).collect();
        members.sort_by_key(|member| member.id);
        Ok(MemberResponse {
            member: status.member,
            cluster: status.cluster,
            leader: status.leader,
            members,
        })
    }
}

/// Chooses the response to trust: of this member's own cluster first, then of the leader, then of a member with a leader.
pub(crate) fn choose_response(
    answers: &[MemberResponse],
    own: Option<ClusterId>,
) -> Option<&MemberResponse> {
    answers.iter().max_by_key(|answer| {
        let is_own = own == Some(answer.cluster);
        let is_leader = answer.leader == Some(answer.member);
        (is_own, is_leader, answer.leader.is_some(), answer.member)
    })
}

impl MemberResponse {
    /// Returns the entry of this member: by the id in its data, else by its name, else by a peer URL.
    pub(crate) fn find_member(&self, myself: LocalMember<'_>) -> Option<&ClusterMember> {
        // With data only the id counts: a member that was removed and added again has the same name and a new id.
        if let Some(id) = myself.observed.member_id {
            return self.members.iter().find(|member| member.id == id);
        }
        let named = self
            .members
            .iter()
            .find(|member| member.name == myself.name);
        named.or_else(|| {
            let is_mine = |url: &String| {
                myself
                    .peer_urls
                    .iter()
                    .any(|own| strip_scheme(own) == strip_scheme(url))
            };
            // An added member has no name until it starts.
            let mut unnamed = self.members.iter().filter(|member| member.name.is_empty());
            unnamed.find(|member| member.peer_urls.iter().any(is_mine))
        })
    }

    /// Summarizes the cluster for the decision and the report.
    pub(crate) fn to_cluster_summary(&self, myself: LocalMember<'_>) -> ClusterSummary {
        ClusterSummary::Found {
            cluster_id: self.cluster.to_string(),
            has_leader: self.leader.is_some(),
            members: self.members.len(),
            mine: match self.find_member(myself) {
                None => MemberRegistration::Absent,
                Some(entry) if entry.has_started => MemberRegistration::Started,
                Some(_) => MemberRegistration::Added,
            },
        }
    }

    /// Returns `initial-cluster` for a member that joins.
    pub(crate) fn to_initial_cluster(&self, myself: LocalMember<'_>) -> InitialClusterConfig {
        let own = self.find_member(myself);
        let pairs = self.members.iter().flat_map(|member| {
            // A joining etcd compares only the peer URLs with the running cluster, so any name serves for a member
            // that has not started yet.
            let name = match &member.name {
                _ if own == Some(member) => myself.name.to_owned(),
                name if name.is_empty() => member.id.to_string(),
                name => name.clone(),
            };
            let urls = member.peer_urls.iter();
            urls.map(move |url| format!("{name}={url}"))
        });
        let known = own.map(|entry| entry.peer_urls.clone());
        InitialClusterConfig::FromRunningCluster {
            members: pairs.collect::<Vec<_>>().join(","),
            own_peer_urls: known.unwrap_or_else(|| myself.peer_urls.to_vec()),
        }
    }
}

/// Returns a URL without its scheme: TLS may have been switched on or off in the meantime.
pub(super) fn strip_scheme(url: &str) -> &str {
    let (_, place) = url.split_once("://").unwrap_or(("", url));
    place.trim_end_matches('/')
}

#[cfg(test)]
mod tests;
