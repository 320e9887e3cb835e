//! The running cluster, as its other members tell.
//!
//! Every address is asked at the same time and each answer stands for itself: the list of a member that is cut off may be
//! old. Of several answers that of the leader counts, then that of one who knows a leader.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use mainstay_ids::{ClusterId, MemberId};
use mainstay_telemetry::ErrorChain;
use mainstay_verdict::{ClusterSummary, MemberRegistration};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;
use url::Url;

use super::data::ObservedDataDir;
use super::template::InitialClusterConfig;

/// How long one member may take to answer, connecting included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

/// How other members are reached.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Other members")]
pub struct ClusterArgs {
    /// Client URLs to ask besides those of the configuration: a service, or a cluster that is joined
    #[arg(
        long,
        env = "MAINSTAY_SERVICE_ENDPOINTS",
        value_name = "URL",
        value_delimiter = ','
    )]
    pub service_endpoints: Vec<Url>,

    /// Certificates to trust, for https addresses
    #[arg(long, env = "MAINSTAY_CACERT", value_name = "FILE")]
    pub cacert: Option<PathBuf>,

    /// Client certificate
    #[arg(long, env = "MAINSTAY_CERT", value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,

    /// Key of the client certificate
    #[arg(long, env = "MAINSTAY_KEY", value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
}

/// Why a member does not answer.
#[derive(Debug, thiserror::Error)]
enum MemberQueryError {
    #[error("read {}", path.display())]
    ReadFile {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("connect")]
    Connect { source: etcd_client::Error },
    #[error("ask for the status")]
    Status { source: etcd_client::Error },
    #[error("ask for the members")]
    MemberList { source: etcd_client::Error },
    #[error("the answer has no header")]
    MissingHeader,
    #[error("there is no answer within {REQUEST_TIMEOUT:?}")]
    Timeout,
}

/// A member of a running cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Its identity.
    pub id: MemberId,
    /// Its name; empty while it was added and never started.
    pub name: String,
    /// Where members reach it.
    pub peer_urls: Vec<String>,
    /// Whether it has ever started.
    pub has_started: bool,
}

/// What one member says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberResponse {
    /// Who says it.
    pub member: MemberId,
    /// Of which cluster.
    pub cluster: ClusterId,
    /// Whom it follows.
    pub leader: Option<MemberId>,
    /// All members, in the order of their identities.
    pub members: Vec<ClusterMember>,
}

/// Who this member is.
#[derive(Clone, Copy, Debug)]
pub struct LocalMember<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it announces itself.
    pub peer_urls: &'a [String],
    /// Its data.
    pub observed: &'a ObservedDataDir,
}

impl ClusterArgs {
    /// Asks everybody; the answers in no order.
    pub async fn query_members(&self, urls: impl IntoIterator<Item = String>) -> Vec<MemberResponse> {
        let service = self.service_endpoints.iter().map(ToString::to_string);
        let mut dashboard_queries = JoinSet::new();
        for url in urls.into_iter().chain(service) {
            let args = self.clone();
            dashboard_queries.spawn(async move {
                let answer = timeout(REQUEST_TIMEOUT, args.query_member(&url)).await;
                (url, answer.unwrap_or(Err(MemberQueryError::Timeout)))
            });
        }
        let mut answers = Vec::new();
        while let Some(joined) = dashboard_queries.join_next().await {
            match joined {
                Ok((_, Ok(answer))) => answers.push(answer),
                Ok((url, Err(error))) => debug!(url, error = %ErrorChain(&error), "no answer"),
                Err(error) => debug!(error = %error, "a question was not asked"),
            }
        }
        answers
    }

    async fn query_member(&self, url: &str) -> Result<MemberResponse, MemberQueryError> {
        let mut options = ConnectOptions::new().with_connect_timeout(REQUEST_TIMEOUT);
        if url.starts_with("https:") {
            options = options.with_tls(self.load_tls_options().await?);
        }
        let client = Client::connect([url.trim_end_matches('/')], Some(options)).await;
        let mut client = client.map_err(|source| MemberQueryError::Connect { source })?;
        let status = client.status().await;
        let status = status.map_err(|source| MemberQueryError::Status { source })?;
        let listed = client.member_list().await;
        let listed = listed.map_err(|source| MemberQueryError::MemberList { source })?;
        let header = status.header().ok_or(MemberQueryError::MissingHeader)?;
        let mut members: Vec<ClusterMember> = listed
            .members()
            .iter()
            .map(|member| ClusterMember {
                id: MemberId(member.id()),
                name: member.name().to_owned(),
                peer_urls: member.peer_urls().to_vec(),
                has_started: !member.client_urls().is_empty(),
            })
            .collect();
        members.sort_by_key(|member| member.id);
        let leader = status.leader();
        Ok(MemberResponse {
            member: MemberId(header.member_id()),
            cluster: ClusterId(header.cluster_id()),
            leader: (leader != 0).then_some(MemberId(leader)),
            members,
        })
    }

    async fn load_tls_options(&self) -> Result<TlsOptions, MemberQueryError> {
        let mut tls = TlsOptions::new();
        if let Some(ca) = &self.cacert {
            tls = tls.ca_certificate(Certificate::from_pem(read_file(ca).await?));
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            let (certificate, key) = (read_file(certificate).await?, read_file(key).await?);
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        Ok(tls)
    }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, MemberQueryError> {
    let read = tokio::fs::read(path).await;
    read.map_err(|source| MemberQueryError::ReadFile {
        path: path.to_owned(),
        source,
    })
}

/// The answer that counts: of the own cluster before any other, of the leader before its followers, of those before
/// members that know no leader.
pub fn choose_response(answers: &[MemberResponse], own: Option<ClusterId>) -> Option<&MemberResponse> {
    answers.iter().max_by_key(|answer| {
        let is_own = own == Some(answer.cluster);
        let is_leader = answer.leader == Some(answer.member);
        (is_own, is_leader, answer.leader.is_some(), answer.member)
    })
}

impl MemberResponse {
    /// This member as the cluster knows it: by its identity where there is data, by its name, or by an address.
    pub fn find_member(&self, myself: LocalMember<'_>) -> Option<&ClusterMember> {
        if let Some(id) = myself.observed.member_id {
            return self.members.iter().find(|member| member.id == id);
        }
        let named = self
            .members
            .iter()
            .find(|member| member.name == myself.name);
        named.or_else(|| {
            let is_mine =
                |url: &String| myself.peer_urls.iter().any(|own| strip_scheme(own) == strip_scheme(url));
            let mut unnamed = self.members.iter().filter(|member| member.name.is_empty());
            unnamed.find(|member| member.peer_urls.iter().any(is_mine))
        })
    }

    /// The cluster for the decision and the report.
    pub fn to_cluster_summary(&self, myself: LocalMember<'_>) -> ClusterSummary {
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

    /// What a member that joins writes into its configuration. etcd compares addresses and their number; a name it
    /// has yet to learn may be anything.
    pub fn to_initial_cluster(&self, myself: LocalMember<'_>) -> InitialClusterConfig {
        let own = self.find_member(myself);
        let pairs = self.members.iter().flat_map(|member| {
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

/// An address without its scheme: encryption may have been switched meanwhile.
pub(super) fn strip_scheme(url: &str) -> &str {
    let (_, place) = url.split_once("://").unwrap_or(("", url));
    place.trim_end_matches('/')
}

#[cfg(test)]
mod tests;
