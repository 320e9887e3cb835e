//! Extracts the membership from a v2 store and skips everything else.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use mainstay_ids::MemberId;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Maximum number of members, current or removed, read from a store.
pub(super) const MAX_MEMBERS: usize = 4096;

/// A member in a v2 store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V2Member {
    /// Member ID.
    pub id: MemberId,
    /// Peer URLs.
    pub peer_urls: Vec<String>,
    /// True for a non-voting member.
    pub is_learner: bool,
    /// Member name; empty until the member has started for the first time.
    pub name: String,
    /// Client URLs; empty until the member has started for the first time.
    pub client_urls: Vec<String>,
}

/// Membership and version in a v2 store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V2Store {
    /// Members in ascending order of IDs.
    pub members: Vec<V2Member>,
    /// IDs of removed members, which etcd never accepts again.
    pub removed: Vec<MemberId>,
    /// Cluster version, for example `3.5.0`; `None` when not set yet.
    pub version: Option<String>,
    /// Number of user keys at the top of `/1`; etcd 3.6 refuses to start with any.
    pub user_keys: usize,
}

/// Why JSON is not a v2 store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum V2StoreError {
    /// The JSON is invalid or has the wrong shape.
    #[error("invalid JSON in the v2 store")]
    Json {
        /// Error of the JSON parser, with line and column.
        source: serde_json::Error,
    },
    /// The name of a member node is not a member ID.
    #[error("v2 store: invalid member ID {name:?} in /0/members")]
    MemberName {
        /// The rejected name.
        name: String,
    },
    /// The attributes of a member are invalid.
    #[error("v2 store: invalid {what} of member {id}")]
    Attributes {
        /// Member ID.
        id: MemberId,
        /// `attributes` or `raftAttributes`.
        what: &'static str,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
    /// A member has no `raftAttributes`, which hold its peer URLs.
    #[error("v2 store: member {id} has no raftAttributes")]
    NoRaftAttributes {
        /// Member ID.
        id: MemberId,
    },
}

impl V2Store {
    /// Extracts the membership from the JSON of a store.
    pub fn parse(json: &[u8]) -> Result<Self, V2StoreError> {
        let store: RawStore =
            serde_json::from_slice(json).map_err(|source| V2StoreError::Json { source })?;
        let top = store.root.children.unwrap_or_default();
        let cluster = top.cluster.and_then(|dir| dir.children).unwrap_or_default();
        let listed = cluster
            .members
            .and_then(|dir| dir.children)
            .unwrap_or_default();
        let removed_members = cluster
            .removed_members
            .and_then(|dir| dir.children)
            .unwrap_or_default();
        let mut members = listed
            .0
            .into_iter()
            .map(read_member)
            .collect::<Result<Vec<_>, V2StoreError>>()?;
        members.sort_by_key(|member| member.id);
        Ok(Self {
            members,
            removed: removed_members
                .0
                .into_keys()
                .map(parse_member_id)
                .collect::<Result<_, _>>()?,
            version: cluster.version.map(|leaf| leaf.value),
            user_keys: top.keys.and_then(|dir| dir.children).unwrap_or_default().0,
        })
    }
}

fn parse_member_id(name: String) -> Result<MemberId, V2StoreError> {
    match MemberId::from_hex(&name) {
        Some(id) => Ok(id),
        None => Err(V2StoreError::MemberName { name }),
    }
}

fn read_member((name, dir): (String, RawDir<RawMember>)) -> Result<V2Member, V2StoreError> {
    let id = parse_member_id(name)?;
    let raw = dir.children.unwrap_or_default();
    let raft = raw
        .raft_attributes
        .ok_or(V2StoreError::NoRaftAttributes { id })?;
    let raft: RaftAttributes =
        serde_json::from_str(&raft.value).map_err(|source| V2StoreError::Attributes {
            id,
            what: "raftAttributes",
            source,
        })?;
    let attributes: Attributes = match raw.attributes {
        Some(leaf) => {
            serde_json::from_str(&leaf.value).map_err(|source| V2StoreError::Attributes {
                id,
                what: "attributes",
                source,
            })?
        }
        None => Attributes::default(),
    };
    Ok(V2Member {
        id,
        peer_urls: raft.peer_urls.unwrap_or_default(),
        is_learner: raft.is_learner,
        name: attributes.name,
        client_urls: attributes.client_urls.unwrap_or_default(),
    })
}

#[derive(Deserialize)]
struct RawStore {
    #[serde(rename = "Root")]
    root: RawDir<RawRoot>,
}

/// A directory node; unused fields are skipped.
#[derive(Deserialize)]
struct RawDir<C> {
    #[serde(rename = "Children", default = "Option::default")]
    children: Option<C>,
}

#[derive(Deserialize)]
struct RawLeaf {
    #[serde(rename = "Value")]
    value: String,
}

#[derive(Default, Deserialize)]
struct RawRoot {
    #[serde(rename = "0")]
    cluster: Option<RawDir<RawCluster>>,
    #[serde(rename = "1")]
    keys: Option<RawDir<EntryCount>>,
}

#[derive(Default, Deserialize)]
struct RawCluster {
    members: Option<RawDir<BoundedMap<RawDir<RawMember>>>>,
    removed_members: Option<RawDir<BoundedMap<IgnoredAny>>>,
    version: Option<RawLeaf>,
}

#[derive(Default, Deserialize)]
struct RawMember {
    #[serde(rename = "raftAttributes")]
    raft_attributes: Option<RawLeaf>,
    attributes: Option<RawLeaf>,
}

#[derive(Deserialize)]
struct RaftAttributes {
    #[serde(rename = "peerURLs")]
    peer_urls: Option<Vec<String>>,
    #[serde(rename = "isLearner", default)]
    is_learner: bool,
}

#[derive(Default, Deserialize)]
struct Attributes {
    #[serde(default)]
    name: String,
    #[serde(rename = "clientURLs")]
    client_urls: Option<Vec<String>>,
}

/// A map of at most [`MAX_MEMBERS`] items.
struct BoundedMap<V>(BTreeMap<String, V>);

impl<V> Default for BoundedMap<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for BoundedMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BoundedMapVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for BoundedMapVisitor<V> {
            type Value = BoundedMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_MEMBERS} members")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    entries.insert(name, value);
                    if entries.len() > MAX_MEMBERS {
                        return Err(de::Error::invalid_length(entries.len(), &self));
                    }
                }
                Ok(BoundedMap(entries))
            }
        }

        deserializer.deserialize_map(BoundedMapVisitor(PhantomData))
    }
}

/// Counts the items of a map and skips their content.
#[derive(Default)]
struct EntryCount(usize);

impl<'de> Deserialize<'de> for EntryCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryCountVisitor;

        impl<'de> Visitor<'de> for EntryCountVisitor {
            type Value = EntryCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of nodes")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EntryCount, A::Error> {
                let mut count = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(EntryCount(count))
            }
        }

        deserializer.deserialize_map(EntryCountVisitor)
    }
}
