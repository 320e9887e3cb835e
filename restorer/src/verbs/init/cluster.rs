//! The running cluster, as its other members tell.
//!
//! Every address is asked at the same time and each answer stands for itself: the list of a member that is cut off may be
//! old. Of several answers that of the leader counts, then that of one who knows a leader.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};
use mainstay_ids::{ClusterId, MemberId};
use mainstay_telemetry::Chain;
use mainstay_verdict::{Cluster, Mine};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;
use url::Url;

use super::data::SeenData;
use super::template::Roster;

/// How long one member may take to answer, connecting included.
const PATIENCE: Duration = Duration::from_secs(4);

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
enum AskError {
    #[error("read {}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("connect")]
    Connect { source: etcd_client::Error },
    #[error("ask for the status")]
    Status { source: etcd_client::Error },
    #[error("ask for the members")]
    Members { source: etcd_client::Error },
    #[error("the answer has no header")]
    Header,
    #[error("there is no answer within {PATIENCE:?}")]
    Silent,
}

/// A member of a running cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
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
pub struct Answer {
    /// Who says it.
    pub member: MemberId,
    /// Of which cluster.
    pub cluster: ClusterId,
    /// Whom it follows.
    pub leader: Option<MemberId>,
    /// All members, in the order of their identities.
    pub members: Vec<Listed>,
}

/// Who this member is.
#[derive(Clone, Copy, Debug)]
pub struct Myself<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it announces itself.
    pub peer_urls: &'a [String],
    /// Its data.
    pub seen: &'a SeenData,
}

impl ClusterArgs {
    /// Asks everybody; the answers in no order.
    pub async fn ask(&self, urls: impl IntoIterator<Item = String>) -> Vec<Answer> {
        let service = self.service_endpoints.iter().map(ToString::to_string);
        let mut questions = JoinSet::new();
        for url in urls.into_iter().chain(service) {
            let args = self.clone();
            questions.spawn(async move {
                let answer = timeout(PATIENCE, args.question(&url)).await;
                (url, answer.unwrap_or(Err(AskError::Silent)))
            });
        }
        let mut answers = Vec::new();
        while let Some(joined) = questions.join_next().await {
            match joined {
                Ok((_, Ok(answer))) => answers.push(answer),
                Ok((url, Err(error))) => debug!(url, error = %Chain(&error), "no answer"),
                Err(error) => debug!(error = %error, "a question was not asked"),
            }
        }
        answers
    }

    async fn question(&self, url: &str) -> Result<Answer, AskError> {
        let mut options = ConnectOptions::new().with_connect_timeout(PATIENCE);
        if url.starts_with("https:") {
            options = options.with_tls(self.tls().await?);
        }
        let client = Client::connect([url.trim_end_matches('/')], Some(options)).await;
        let mut client = client.map_err(|source| AskError::Connect { source })?;
        let status = client.status().await;
        let status = status.map_err(|source| AskError::Status { source })?;
        let listed = client.member_list().await;
        let listed = listed.map_err(|source| AskError::Members { source })?;
        let header = status.header().ok_or(AskError::Header)?;
        let mut members: Vec<Listed> = listed
            .members()
            .iter()
            .map(|member| Listed {
                id: MemberId(member.id()),
                name: member.name().to_owned(),
                peer_urls: member.peer_urls().to_vec(),
                has_started: !member.client_urls().is_empty(),
            })
            .collect();
        members.sort_by_key(|member| member.id);
        let leader = status.leader();
        Ok(Answer {
            member: MemberId(header.member_id()),
            cluster: ClusterId(header.cluster_id()),
            leader: (leader != 0).then_some(MemberId(leader)),
            members,
        })
    }

    async fn tls(&self) -> Result<TlsOptions, AskError> {
        let mut tls = TlsOptions::new();
        if let Some(ca) = &self.cacert {
            tls = tls.ca_certificate(Certificate::from_pem(read(ca).await?));
        }
        if let (Some(certificate), Some(key)) = (&self.cert, &self.key) {
            let (certificate, key) = (read(certificate).await?, read(key).await?);
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        Ok(tls)
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, AskError> {
    let read = tokio::fs::read(path).await;
    read.map_err(|source| AskError::File {
        path: path.to_owned(),
        source,
    })
}

/// The answer that counts: of the own cluster before any other, of the leader before its followers, of those before
/// members that know no leader.
pub fn weightiest(answers: &[Answer], own: Option<ClusterId>) -> Option<&Answer> {
    answers.iter().max_by_key(|answer| {
        let is_own = own == Some(answer.cluster);
        let is_leader = answer.leader == Some(answer.member);
        (is_own, is_leader, answer.leader.is_some(), answer.member)
    })
}

impl Answer {
    /// This member as the cluster knows it: by its identity where there is data, by its name, or by an address.
    pub fn entry_of(&self, myself: Myself<'_>) -> Option<&Listed> {
        if let Some(id) = myself.seen.member {
            return self.members.iter().find(|member| member.id == id);
        }
        let named = self
            .members
            .iter()
            .find(|member| member.name == myself.name);
        named.or_else(|| {
            let is_mine =
                |url: &String| myself.peer_urls.iter().any(|own| place(own) == place(url));
            let mut unnamed = self.members.iter().filter(|member| member.name.is_empty());
            unnamed.find(|member| member.peer_urls.iter().any(is_mine))
        })
    }

    /// The cluster for the decision and the report.
    pub fn summary(&self, myself: Myself<'_>) -> Cluster {
        Cluster::Found {
            cluster_id: self.cluster.to_string(),
            has_leader: self.leader.is_some(),
            members: self.members.len(),
            mine: match self.entry_of(myself) {
                None => Mine::Absent,
                Some(entry) if entry.has_started => Mine::Started,
                Some(_) => Mine::Added,
            },
        }
    }

    /// What a member that joins writes into its configuration. etcd compares addresses and their number; a name it
    /// has yet to learn may be anything.
    pub fn roster(&self, myself: Myself<'_>) -> Roster {
        let own = self.entry_of(myself);
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
        Roster::Running {
            members: pairs.collect::<Vec<_>>().join(","),
            own_peer_urls: known.unwrap_or_else(|| myself.peer_urls.to_vec()),
        }
    }
}

/// An address without its scheme: encryption may have been switched meanwhile.
pub(super) fn place(url: &str) -> &str {
    let (_, place) = url.split_once("://").unwrap_or(("", url));
    place.trim_end_matches('/')
}

#[cfg(test)]
mod tests;
