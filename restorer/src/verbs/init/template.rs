//! The configuration of all members, and the file of one.
//!
//! The template has etcd's own keys, except that the advertised addresses are a map from member to addresses and that
//! the name is a placeholder. Keys this program does not know pass through: etcd is to understand them.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use mainstay_datadir::{InitialCluster, MembershipError};
use serde_norway::{Mapping, Value};

use super::decide::{ClusterState, Configured};
use crate::failure::{Classify, Verdict};

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
    Key {
        /// The key.
        key: &'static str,
    },
    /// The members of a new cluster cannot be read.
    #[error("the configuration has a wrong initial-cluster")]
    Members {
        /// What is wrong.
        source: MembershipError,
    },
    /// The map of addresses lacks this member.
    #[error("the configuration has no {key} for the member {member}")]
    Member {
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
    fn verdict(&self) -> Verdict {
        match self {
            Self::Write { .. } => Verdict::Disk,
            _ => Verdict::Usage,
        }
    }
}

const NAME: &str = "name";
const DATA_DIR: &str = "data-dir";
const PEER_URLS: &str = "initial-advertise-peer-urls";
const CLIENT_URLS: &str = "advertise-client-urls";
const MEMBERS: &str = "initial-cluster";
const STATE: &str = "initial-cluster-state";
const PREFIX: &str = "member-name-prefix";

/// The configuration of all members.
#[derive(Clone, Debug)]
pub struct Template(Mapping);

/// The members a member's file names, `name=url` pairs, and in which state the cluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roster {
    /// As the template says: a cluster begins, or the data knows better.
    Configured(ClusterState),
    /// As the running cluster says.
    Running {
        /// All members.
        members: String,
        /// The addresses it knows of this one.
        own_peer_urls: Vec<String>,
    },
}

impl Template {
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

    fn text(&self, key: &'static str) -> Result<&str, TemplateError> {
        let found = self.0.get(key).and_then(Value::as_str);
        found.ok_or(TemplateError::Key { key })
    }

    /// The name of the member of a pod.
    pub fn member(&self, pod: &str) -> String {
        match self.0.get(PREFIX).and_then(Value::as_str) {
            Some(prefix) if !prefix.is_empty() => format!("{prefix}-{pod}"),
            _ => pod.to_owned(),
        }
    }

    /// Where every member has its data.
    pub fn data_dir(&self) -> Result<PathBuf, TemplateError> {
        self.text(DATA_DIR).map(PathBuf::from)
    }

    /// What it says about the cluster to this member.
    pub fn configured(&self, member: &str) -> Result<Configured, TemplateError> {
        let state = match self.text(STATE)? {
            "new" => ClusterState::New,
            "existing" => ClusterState::Existing,
            _ => return Err(TemplateError::Key { key: STATE }),
        };
        let listed: Vec<String> = match self.text(MEMBERS)? {
            "" => Vec::new(),
            members => {
                let members: Result<InitialCluster, _> = members.parse();
                let members = members.map_err(|source| TemplateError::Members { source })?;
                members.members().iter().map(|m| m.name.clone()).collect()
            }
        };
        Ok(Configured {
            state,
            is_alone: listed == [member],
            is_listed: listed.iter().any(|name| name == member),
        })
    }

    /// Where clients reach the other members.
    pub fn other_client_urls(&self, member: &str) -> Result<Vec<String>, TemplateError> {
        let all = self.addresses(CLIENT_URLS)?;
        let others = all.into_iter().filter(|(name, _)| name != member);
        Ok(others.flat_map(|(_, urls)| urls).collect())
    }

    /// Where this member announces itself to others.
    pub fn peer_urls(&self, member: &str) -> Result<Vec<String>, TemplateError> {
        self.own(PEER_URLS, member)
    }

    /// A map from member to addresses.
    fn addresses(&self, key: &'static str) -> Result<Vec<(String, Vec<String>)>, TemplateError> {
        let wrong = || TemplateError::Key { key };
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

    fn own(&self, key: &'static str, member: &str) -> Result<Vec<String>, TemplateError> {
        let all = self.addresses(key)?;
        let own = all.into_iter().find(|(name, _)| name == member);
        let urls = own.map(|(_, urls)| urls).filter(|urls| !urls.is_empty());
        urls.ok_or_else(|| TemplateError::Member {
            key,
            member: member.to_owned(),
        })
    }

    /// The file of one member, in etcd's own form.
    pub fn file_of(&self, member: &str, roster: &Roster) -> Result<String, TemplateError> {
        let mut file = self.0.clone();
        file.remove(PREFIX);
        let mut set = |key: &str, value: &str| file.insert(key.into(), value.into());
        set(NAME, member);
        set(CLIENT_URLS, &self.own(CLIENT_URLS, member)?.join(","));
        let own_urls = self.peer_urls(member)?;
        match roster {
            Roster::Configured(state) => {
                set(PEER_URLS, &own_urls.join(","));
                let word = match state {
                    ClusterState::New => "new",
                    ClusterState::Existing => "existing",
                };
                set(STATE, word);
                let is_listed = self.configured(member)?.is_listed;
                if !is_listed {
                    let pairs: Vec<String> = own_urls
                        .iter()
                        .map(|url| format!("{member}={url}"))
                        .collect();
                    set(MEMBERS, &pairs.join(","));
                }
            }
            Roster::Running {
                members,
                own_peer_urls,
            } => {
                set(PEER_URLS, &own_peer_urls.join(","));
                set(STATE, "existing");
                set(MEMBERS, members);
            }
        }
        serde_norway::to_string(&file).map_err(|source| TemplateError::Encode { source })
    }
}

/// Puts a file in place: it is there whole, or as it was.
pub fn put(path: &Path, text: &str) -> Result<(), TemplateError> {
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
