//! Who is a member of a new cluster, and the identities that follow from it.
//!
//! A member's identity is a hash of its peer URLs and the cluster token, a cluster's identity a hash of
//! those. The name takes no part. The same URLs with the same token give the same identities, so a restored
//! cluster that must not be mistaken for the old one needs a token of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::str::FromStr;

use mainstay_ids::{ClusterId, MemberId};
use mainstay_wal::ConfState;
use mainstay_wal::go_json::{push_string, push_strings};
use sha1::{Digest as _, Sha1};

use crate::peer_url::{PeerUrl, PeerUrlError};

/// One name of an `--initial-cluster` with all its URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMember {
    /// The name.
    pub name: String,
    /// Its URLs, in the order they were given.
    pub peer_urls: Vec<PeerUrl>,
}

/// The value of `--initial-cluster`: `name=url` pairs separated by commas, a name repeated for each of its URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialCluster(Vec<ListedMember>);

/// Why a membership cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// There is no member.
    #[error("the initial cluster lists no member")]
    Empty,
    /// A part is not `name=url`.
    #[error("initial cluster: {part:?} does not have the form name=url")]
    InvalidPair {
        /// The part.
        part: String,
    },
    /// A name is empty or has blanks around it, under which etcd would not find it.
    #[error("initial cluster: {name:?} is no member name")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// A URL is wrong.
    #[error("initial cluster, member {name:?}")]
    InvalidUrl {
        /// Whose URL it is.
        name: String,
        /// What is wrong with it.
        source: PeerUrlError,
    },
    /// Two places of the list have the same URL.
    #[error("initial cluster: {url} is listed for {first:?} and again for {second:?}")]
    DuplicateUrl {
        /// The URL.
        url: PeerUrl,
        /// Whose it is.
        first: String,
        /// Whose it is as well.
        second: String,
    },
    /// Two members, or one and the value 0 that raft reserves, have the same identity.
    #[error("member {name:?} would have the identity {id}, which is taken or reserved")]
    DuplicateId {
        /// The member.
        name: String,
        /// The identity.
        id: MemberId,
    },
    /// No member has this name.
    #[error("member {name:?} is not in the initial cluster, which lists {listed}")]
    UnknownMember {
        /// The name looked for.
        name: String,
        /// The names there are.
        listed: String,
    },
    /// A member advertises other URLs than those listed for it.
    #[error(
        "member {name:?} advertises {advertised}, but the initial cluster lists {listed} for it"
    )]
    AdvertisedUrlsMismatch {
        /// The member.
        name: String,
        /// What it advertises.
        advertised: String,
        /// What is listed.
        listed: String,
    },
}

impl InitialCluster {
    /// A cluster of one.
    pub fn single_member(name: &str, peer_urls: Vec<PeerUrl>) -> Result<Self, MembershipError> {
        check_name(name)?;
        Self(vec![ListedMember {
            name: name.to_owned(),
            peer_urls,
        }])
        .validate()
    }

    /// The members in the order in which they were first named.
    pub fn members(&self) -> &[ListedMember] {
        &self.0
    }

    fn validate(self) -> Result<Self, MembershipError> {
        let mut owners: BTreeMap<&PeerUrl, &str> = BTreeMap::new();
        for member in &self.0 {
            if member.peer_urls.is_empty() {
                let (name, source) = (member.name.clone(), PeerUrlError::Empty);
                return Err(MembershipError::InvalidUrl { name, source });
            }
            for url in &member.peer_urls {
                if let Some(first) = owners.insert(url, &member.name) {
                    return Err(MembershipError::DuplicateUrl {
                        url: url.clone(),
                        first: first.to_owned(),
                        second: member.name.clone(),
                    });
                }
            }
        }
        if self.0.is_empty() {
            Err(MembershipError::Empty)
        } else {
            Ok(self)
        }
    }
}

impl FromStr for InitialCluster {
    type Err = MembershipError;

    fn from_str(text: &str) -> Result<Self, MembershipError> {
        let mut members: Vec<ListedMember> = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let Some((name, url)) = part.split_once('=') else {
                return Err(MembershipError::InvalidPair {
                    part: part.to_owned(),
                });
            };
            check_name(name)?;
            let url: PeerUrl = url.parse().map_err(|source| MembershipError::InvalidUrl {
                name: name.to_owned(),
                source,
            })?;
            match members.iter_mut().find(|member| member.name == name) {
                Some(member) => member.peer_urls.push(url),
                None => {
                    members.push(ListedMember {
                        name: name.to_owned(),
                        peer_urls: vec![url],
                    });
                }
            }
        }
        Self(members).validate()
    }
}

fn check_name(name: &str) -> Result<(), MembershipError> {
    if name.is_empty() || name.trim() != name || name.contains(char::is_control) {
        return Err(MembershipError::InvalidName {
            name: name.to_owned(),
        });
    }
    Ok(())
}

/// A member of a new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub id: MemberId,
    /// Its name.
    pub name: String,
    /// Its peer URLs, sorted.
    pub peer_urls: Vec<String>,
}

impl Member {
    /// The value etcd keeps for it in the `members` bucket and in the entry that adds it.
    pub fn to_json(&self) -> String {
        let mut json = format!("{{\"id\":{},\"peerURLs\":", self.id.0);
        push_strings(&mut json, &self.peer_urls);
        json.push_str(",\"name\":");
        push_string(&mut json, &self.name);
        json.push('}');
        json
    }

    fn new(listed: &ListedMember, token: &str) -> Self {
        let mut peer_urls: Vec<String> = listed
            .peer_urls
            .iter()
            .map(|url| url.as_str().to_owned())
            .collect();
        peer_urls.sort();
        let mut hash = Sha1::new();
        for url in &peer_urls {
            hash.update(url);
        }
        hash.update(token);
        let id = MemberId(leading_u64(&hash.finalize()));
        Self {
            id,
            name: listed.name.clone(),
            peer_urls,
        }
    }
}

/// The first eight bytes of a hash as a number.
fn leading_u64(hash: &[u8]) -> u64 {
    hash.first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The members of a new cluster with their identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMembership {
    cluster_id: ClusterId,
    members: Vec<Member>,
}

impl ClusterMembership {
    /// Gives the listed members their identities under `token`.
    pub fn new(listed: &InitialCluster, token: &str) -> Result<Self, MembershipError> {
        let mut members: Vec<Member> = listed
            .members()
            .iter()
            .map(|member| Member::new(member, token))
            .collect();
        members.sort_by_key(|member| member.id);
        let mut last = MemberId(0);
        let mut hash = Sha1::new();
        for member in &members {
            if member.id == last {
                return Err(MembershipError::DuplicateId {
                    name: member.name.clone(),
                    id: last,
                });
            }
            last = member.id;
            hash.update(member.id.0.to_be_bytes());
        }
        Ok(Self {
            cluster_id: ClusterId(leading_u64(&hash.finalize())),
            members,
        })
    }

    /// The identity of the cluster.
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster_id
    }

    /// The members in ascending order of their identities; at least one.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member of this identity.
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The member called `name`, which advertises `urls`: they must be the listed ones, in any order.
    pub fn find_member(&self, name: &str, urls: &[PeerUrl]) -> Result<&Member, MembershipError> {
        let Some(member) = self.members.iter().find(|member| member.name == name) else {
            let listed: Vec<_> = self
                .members
                .iter()
                .map(|member| member.name.as_str())
                .collect();
            let (name, listed) = (name.to_owned(), listed.join(", "));
            return Err(MembershipError::UnknownMember { name, listed });
        };
        let mut advertised: Vec<&str> = urls.iter().map(PeerUrl::as_str).collect();
        advertised.sort_unstable();
        advertised.dedup();
        if advertised != member.peer_urls {
            return Err(MembershipError::AdvertisedUrlsMismatch {
                name: name.to_owned(),
                advertised: advertised.join(", "),
                listed: member.peer_urls.join(", "),
            });
        }
        Ok(member)
    }

    /// The membership as raft sees it.
    pub fn conf_state(&self) -> ConfState {
        ConfState::from_voters(self.members.iter().map(|member| member.id).collect())
    }

    /// The value of `confState` in the `meta` bucket.
    pub fn conf_state_json(&self) -> String {
        let mut json = String::from("{\"voters\":[");
        for (position, member) in self.members.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            let _infallible = write!(json, "{comma}{}", member.id.0);
        }
        json.push_str("],\"auto_leave\":false}");
        json
    }

    /// Keys and values of the `members` bucket, in the order of the keys.
    pub fn members_bucket_rows(&self) -> Vec<(String, String)> {
        let mut rows: Vec<_> = self
            .members
            .iter()
            .map(|member| (member.id.to_string(), member.to_json()))
            .collect();
        rows.sort();
        rows
    }
}

#[cfg(test)]
mod tests;
