//! Members of a new cluster and their IDs.
//!
//! As in etcd, a member ID is a hash of the peer URLs and the cluster token, a cluster ID a hash of the member
//! IDs. Names do not matter. The same URLs and token give the same IDs, so a restored cluster that must not
//! be confused with the old one needs a new token.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::str::FromStr;

use mainstay_ids::{ClusterId, MemberId};
use mainstay_wal::ConfState;
use mainstay_wal::go_json::{push_string, push_strings};
use sha1::{Digest as _, Sha1};

use crate::peer_url::{PeerUrl, PeerUrlError};

/// One member of `--initial-cluster` with all its URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMember {
    /// The member's name.
    pub name: String,
    /// Its URLs, in the given order.
    pub peer_urls: Vec<PeerUrl>,
}

/// The value of `--initial-cluster`: `name=url` pairs separated by commas, a name repeated for each of its URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialCluster(Vec<ListedMember>);

/// The membership is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The list is empty.
    #[error("initial cluster lists no member")]
    Empty,
    /// A part is not `name=url`.
    #[error("initial cluster: {part:?} must have the form name=url")]
    InvalidPair {
        /// The part as given.
        part: String,
    },
    /// A name is empty or surrounded by blanks, which etcd does not trim.
    #[error("initial cluster: invalid member name {name:?}")]
    InvalidName {
        /// The name as given.
        name: String,
    },
    /// A URL is invalid.
    #[error("initial cluster: member {name:?}")]
    InvalidUrl {
        /// The member.
        name: String,
        /// The URL error.
        source: PeerUrlError,
    },
    /// A URL is listed twice.
    #[error("initial cluster: {url} is listed for both {first:?} and {second:?}")]
    DuplicateUrl {
        /// The URL.
        url: PeerUrl,
        /// The first member with this URL.
        first: String,
        /// The second member with this URL, or the same one.
        second: String,
    },
    /// Two members have the same ID, or a member has ID 0, which raft reserves.
    #[error("initial cluster: member {name:?} has ID {id}, which is a duplicate or reserved")]
    DuplicateId {
        /// The member.
        name: String,
        /// The computed ID.
        id: MemberId,
    },
    /// No member has this name.
    #[error("member {name:?} is not among the members of the initial cluster: {listed}")]
    UnknownMember {
        /// The requested name.
        name: String,
        /// The listed names.
        listed: String,
    },
    /// A member advertises other URLs than those listed for it.
    #[error("member {name:?} advertises {advertised}, but the initial cluster lists {listed}")]
    AdvertisedUrlsMismatch {
        /// The member.
        name: String,
        /// The advertised URLs.
        advertised: String,
        /// The listed URLs.
        listed: String,
    },
}

impl InitialCluster {
    /// A cluster with one member.
    pub fn single_member(name: &str, peer_urls: Vec<PeerUrl>) -> Result<Self, MembershipError> {
        check_name(name)?;
        Self(vec![ListedMember {
            name: name.to_owned(),
            peer_urls,
        }])
        .validate()
    }

    /// The members, in the order of their first occurrence.
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
        // etcd ignores empty parts, for example after a trailing comma.
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
    /// Member ID.
    pub id: MemberId,
    /// Member name.
    pub name: String,
    /// Peer URLs, sorted.
    pub peer_urls: Vec<String>,
}

impl Member {
    /// The JSON that etcd stores in the `members` bucket and in the entry that adds the member.
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
        // etcd sorts the URLs before hashing, so their order does not change the ID.
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

/// The first eight bytes of a hash as a big-endian number.
fn leading_u64(hash: &[u8]) -> u64 {
    hash.first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The members of a new cluster with their IDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMembership {
    cluster_id: ClusterId,
    members: Vec<Member>,
}

impl ClusterMembership {
    /// Computes the IDs of the listed members for `token`.
    pub fn new(listed: &InitialCluster, token: &str) -> Result<Self, MembershipError> {
        let mut members: Vec<Member> = listed
            .members()
            .iter()
            .map(|member| Member::new(member, token))
            .collect();
        members.sort_by_key(|member| member.id);
        // Starting at 0 also rejects ID 0, which raft reserves for "no member".
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

    /// The cluster ID.
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster_id
    }

    /// The members in ascending order of their IDs; at least one.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member with this ID.
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Finds the member `name`. Its advertised `urls` must equal the listed ones, in any order.
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

    /// The raft configuration with all members as voters.
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

    /// Keys and values of the `members` bucket, in key order.
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
