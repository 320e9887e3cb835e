//! The configuration of all members, and the file of one.
//!
//! The template has etcd's own keys, except that the advertised addresses are a map from member to addresses and that
//! the name is a placeholder. Keys this program does not know pass through: etcd is to understand them.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use mainstay_datadir::{InitialCluster, MembershipError};
use serde_norway::{Mapping, Value};

use super::decide::{InitialClusterState, ConfiguredCluster};
use crate::failure::{Classify, ExitVerdict};

/// Why there is no configuration for a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template cannot be read.
    #[error("read the configuration {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The template is no YAML mapping.
    #[error("the configuration {} is no mapping in YAML", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_norway::Error,
    },
    /// A key is missing, or holds something else than it should.
    #[error("the configuration says nothing usable for {key}")]
    InvalidKey {
        /// The key.
        key: &'static str,
    },
    /// The members of a new cluster cannot be read.
    #[error("the configuration has a wrong initial-cluster")]
    InvalidInitialCluster {
        /// What is wrong.
        source: MembershipError,
    },
    /// The map of addresses lacks this member.
    #[error("the configuration has no {key} for the member {member}")]
    MissingMember {
        /// The key.
        key: &'static str,
        /// The member.
        member: String,
    },
    /// The file cannot be written as YAML.
    #[error("write the configuration as YAML")]
    Encode {
        /// What the writer said.
        source: serde_norway::Error,
    },
    /// The file cannot be put in place.
    #[error("write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Classify for TemplateError {
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::Write { .. } => ExitVerdict::Disk,
            _ => ExitVerdict::Usage,
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

/// The configuration of all members.
#[derive(Clone, Debug)]
pub struct ConfigTemplate(Mapping);

/// The members a member's file names, `name=url` pairs, and in which state the cluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialClusterConfig {
    /// As the template says: a cluster begins, or the data knows better.
    FromTemplate(InitialClusterState),
    /// As the running cluster says.
    FromRunningCluster {
        /// All members.
        members: String,
        /// The addresses it knows of this one.
        own_peer_urls: Vec<String>,
    },
}

impl ConfigTemplate {
    /// Reads the template.
    pub fn read(path: &Path) -> Result<Self, TemplateError> {
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

    /// The name of the member of a pod.
    pub fn member_name(&self, pod: &str) -> String {
        match self.0.get(NAME_PREFIX_KEY).and_then(Value::as_str) {
            Some(prefix) if !prefix.is_empty() => format!("{prefix}-{pod}"),
            _ => pod.to_owned(),
        }
    }

    /// Where every member has its data.
    pub fn data_dir(&self) -> Result<PathBuf, TemplateError> {
        self.get_str(DATA_DIR_KEY).map(PathBuf::from)
    }

    /// What it says about the cluster to this member.
    pub fn configured_cluster(&self, member: &str) -> Result<ConfiguredCluster, TemplateError> {
        let state = match self.get_str(CLUSTER_STATE_KEY)? {
            "new" => InitialClusterState::New,
            "existing" => InitialClusterState::Existing,
            _ => return Err(TemplateError::InvalidKey { key: CLUSTER_STATE_KEY }),
        };
        let listed: Vec<String> = match self.get_str(INITIAL_CLUSTER_KEY)? {
            "" => Vec::new(),
            members => {
                let members: Result<InitialCluster, _> = members.parse();
                let members = members.map_err(|source| TemplateError::InvalidInitialCluster { source })?;
                members.members().iter().map(|m| m.name.clone()).collect()
            }
        };
        Ok(ConfiguredCluster {
            state,
            is_single_member: listed == [member],
            is_listed: listed.iter().any(|name| name == member),
        })
    }

    /// Where clients reach the other members.
    pub fn other_client_urls(&self, member: &str) -> Result<Vec<String>, TemplateError> {
        let all = self.urls_by_member(CLIENT_URLS_KEY)?;
        let others = all.into_iter().filter(|(name, _)| name != member);
        Ok(others.flat_map(|(_, urls)| urls).collect())
    }

    /// Where this member announces itself to others.
    pub fn peer_urls(&self, member: &str) -> Result<Vec<String>, TemplateError> {
        self.member_urls(PEER_URLS_KEY, member)
    }

    /// A map from member to addresses.
    fn urls_by_member(&self, key: &'static str) -> Result<Vec<(String, Vec<String>)>, TemplateError> {
        let wrong = || TemplateError::InvalidKey { key };
        let map = self
            .0
            .get(key)
            .and_then(Value::as_mapping)
            .ok_or_else(wrong)?;
        let entry = |(name, urls): (&Value, &Value)| {
            let urls = urls.as_sequence()?.iter();
            let urls: Option<Vec<String>> =
                urls.map(|url| url.as_str().map(str::to_owned)).collect();
            Some((name.as_str()?.to_owned(), urls?))
        };
        map.iter()
            .map(|pair| entry(pair).ok_or_else(wrong))
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

    /// The file of one member, in etcd's own form.
    pub fn render_member_config(&self, member: &str, roster: &InitialClusterConfig) -> Result<String, TemplateError> {
        let mut file = self.0.clone();
        file.remove(NAME_PREFIX_KEY);
        let mut set = |key: &str, value: &str| file.insert(key.into(), value.into());
        set(NAME_KEY, member);
        set(CLIENT_URLS_KEY, &self.member_urls(CLIENT_URLS_KEY, member)?.join(","));
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
                set(PEER_URLS_KEY, &own_peer_urls.join(","));
                set(CLUSTER_STATE_KEY, "existing");
                set(INITIAL_CLUSTER_KEY, members);
            }
        }
        serde_norway::to_string(&file).map_err(|source| TemplateError::Encode { source })
    }
}

/// Puts a file in place: it is there whole, or as it was.
pub fn write_atomically(path: &Path, text: &str) -> Result<(), TemplateError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let written = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
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
