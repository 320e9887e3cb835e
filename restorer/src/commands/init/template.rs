//! Reads the configuration template of all members and renders the configuration file of one.
//!
//! The template is a configuration file of etcd, except that the advertised URLs are maps from member name to URLs and
//! that the name is a placeholder. Unknown keys are passed on to etcd unchanged.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use mainstay_datadir::{InitialCluster, MembershipError};
use mainstay_verdict::Verdict;
use serde_norway::{Mapping, Value};

use super::decide::{ConfiguredCluster, InitialClusterState};
use crate::failure::Classify;

/// Error of reading the template or writing the configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TemplateError {
    #[error("failed to read the configuration template {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("configuration template {} is not a YAML mapping", path.display())]
    Syntax {
        path: PathBuf,
        source: serde_norway::Error,
    },
    #[error("configuration template: {key} is missing or invalid")]
    InvalidKey { key: &'static str },
    #[error("configuration template: initial-cluster is invalid")]
    InvalidInitialCluster { source: MembershipError },
    #[error("configuration template: {key} has no entry for member {member}")]
    MissingMember { key: &'static str, member: String },
    #[error("failed to encode the configuration as YAML")]
    Encode { source: serde_norway::Error },
    #[error("failed to write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl Classify for TemplateError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Write { .. } => Verdict::Disk,
            _ => Verdict::Usage,
        }
    }
}

const NAME_KEY: &str = "name";
const DATA_DIR_KEY: &str = "data-dir";
const PEER_URLS_KEY: &str = "initial-advertise-peer-urls";
const CLIENT_URLS_KEY: &str = "advertise-client-urls";
const INITIAL_CLUSTER_KEY: &str = "initial-cluster";
const CLUSTER_STATE_KEY: &str = "initial-cluster-state";
const NAME_PREFIX_KEY: &str = "member-name-prefix";

/// The configuration template of all members.
#[derive(Clone, Debug)]
pub(crate) struct ConfigTemplate(Mapping);

/// `initial-cluster` and `initial-cluster-state` of a member's configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InitialClusterConfig {
    /// `initial-cluster` of the template: etcd bootstraps with it, or ignores it because it has data.
    FromTemplate(InitialClusterState),
    /// The member list of the running cluster.
    FromRunningCluster {
        /// All members as comma-separated `name=url` pairs.
        members: String,
        /// Peer URLs of this member, as listed by the cluster.
        own_peer_urls: Vec<String>,
    },
}

impl ConfigTemplate {
    pub(crate) fn read(path: &Path) -> Result<Self, TemplateError> {
        let text = std::fs::read_to_string(path).map_err(|source| TemplateError::Read {
            path: path.to_owned(),
            source,
        })?;
        serde_norway::from_str(&text)
            .map(Self)
            .map_err(|source| TemplateError::Syntax {
                path: path.to_owned(),
                source,
            })
    }

    fn get_str(&self, key: &'static str) -> Result<&str, TemplateError> {
        let found = self.0.get(key).and_then(Value::as_str);
        found.ok_or(TemplateError::InvalidKey { key })
    }

    /// Returns the member name of a pod: with `member-name-prefix`, if the template has one.
    pub(crate) fn member_name(&self, pod: &str) -> String {
        match self.0.get(NAME_PREFIX_KEY).and_then(Value::as_str) {
            Some(prefix) if !prefix.is_empty() => format!("{prefix}-{pod}"),
            _ => pod.to_owned(),
        }
    }

    pub(crate) fn data_dir(&self) -> Result<PathBuf, TemplateError> {
        self.get_str(DATA_DIR_KEY).map(PathBuf::from)
    }

    /// Returns what the template configures for this member.
    pub(crate) fn configured_cluster(
        &self,
        member: &str,
    ) -> Result<ConfiguredCluster, TemplateError> {
        let state = match self.get_str(CLUSTER_STATE_KEY)? {
            "new" => InitialClusterState::New,
            "existing" => InitialClusterState::Existing,
            _ => {
                return Err(TemplateError::InvalidKey {
                    key: CLUSTER_STATE_KEY,
                });
            }
        };
        let listed: Vec<String> = match self.get_str(INITIAL_CLUSTER_KEY)? {
            // A valid template, which InitialCluster would refuse to parse.
            "" => Vec::new(),
            members => {
                let members: Result<InitialCluster, _> = members.parse();
                let members =
                    members.map_err(|source| TemplateError::InvalidInitialCluster { source })?;
                members.members().iter().map(|m| m.name.clone()).collect()
            }
        };
        Ok(ConfiguredCluster {
            state,
            is_single_member: listed == [member],
            is_listed: listed.iter().any(|name| name == member),
        })
    }

    /// Returns the client URLs of the other members.
    pub(crate) fn other_client_urls(&self, member: &str) -> Result<Vec<String>, TemplateError> {
        let all = self.urls_by_member(CLIENT_URLS_KEY)?;
        let others = all.into_iter().filter(|(name, _)| name != member);
        Ok(others.flat_map(|(_, urls)| urls).collect())
    }

    /// Returns the advertised peer URLs of this member.
    pub(crate) fn peer_urls(&self, member: &str) -> Result<Vec<String>, TemplateError> {
        self.member_urls(PEER_URLS_KEY, member)
    }

    /// Parses a map from member name to URLs.
    fn urls_by_member(
        &self,
        key: &'static str,
    ) -> Result<Vec<(String, Vec<String>)>, TemplateError> {
        let invalid = || TemplateError::InvalidKey { key };
        let map = self
            .0
            .get(key)
            .and_then(Value::as_mapping)
            .ok_or_else(invalid)?;
        let entry = |(name, urls): (&Value, &Value)| {
            let urls = urls.as_sequence()?.iter();
            let urls: Option<Vec<String>> =
                urls.map(|url| url.as_str().map(str::to_owned)).collect();
            Some((name.as_str()?.to_owned(), urls?))
        };
        map.iter()
            .map(|pair| entry(pair).ok_or_else(invalid))
            .collect()
    }

    fn member_urls(&self, key: &'static str, member: &str) -> Result<Vec<String>, TemplateError> {
        let all = self.urls_by_member(key)?;
        let own = all.into_iter().find(|(name, _)| name == member);
        let urls = own.map(|(_, urls)| urls).filter(|urls| !urls.is_empty());
        urls.ok_or_else(|| TemplateError::MissingMember {
            key,
            member: member.to_owned(),
        })
    }

    /// Renders the configuration file of one member, in the format of etcd.
    pub(crate) fn render_member_config(
        &self,
        member: &str,
        roster: &InitialClusterConfig,
    ) -> Result<String, TemplateError> {
        let mut file = self.0.clone();
        // A key of the template only: etcd does not have it.
        file.remove(NAME_PREFIX_KEY);
        let mut set = |key: &str, value: &str| file.insert(key.into(), value.into());
        set(NAME_KEY, member);
        set(
            CLIENT_URLS_KEY,
            &self.member_urls(CLIENT_URLS_KEY, member)?.join(","),
        );
        let own_urls = self.peer_urls(member)?;
        match roster {
            InitialClusterConfig::FromTemplate(state) => {
                set(PEER_URLS_KEY, &own_urls.join(","));
                let word = match state {
                    InitialClusterState::New => "new",
                    InitialClusterState::Existing => "existing",
                };
                set(CLUSTER_STATE_KEY, word);
                let is_listed = self.configured_cluster(member)?.is_listed;
                // etcd expects its own name in initial-cluster.
                if !is_listed {
                    let pairs: Vec<String> = own_urls
                        .iter()
                        .map(|url| format!("{member}={url}"))
                        .collect();
                    set(INITIAL_CLUSTER_KEY, &pairs.join(","));
                }
            }
            InitialClusterConfig::FromRunningCluster {
                members,
                own_peer_urls,
            } => {
                // etcd compares its peer URLs with those of the cluster and refuses to join if they differ.
                set(PEER_URLS_KEY, &own_peer_urls.join(","));
                set(CLUSTER_STATE_KEY, "existing");
                set(INITIAL_CLUSTER_KEY, members);
            }
        }
        serde_norway::to_string(&file).map_err(|source| TemplateError::Encode { source })
    }
}

/// Writes a file atomically: after a crash it has the old or the complete new content.
pub(crate) fn write_atomically(path: &Path, text: &str) -> Result<(), TemplateError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        // Synced before the rename: after a crash the name must not refer to an empty file.
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    });
    written.map(drop).map_err(|source| TemplateError::Write {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests;
