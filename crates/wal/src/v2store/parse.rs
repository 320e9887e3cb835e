//! Takes the membership out of a tree, skipping everything else as it goes by.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use mainstay_ids::MemberId;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Members, present and removed, that are read from a tree.
pub(super) const MAX_MEMBERS: usize = 4096;

/// A member as the tree describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V2Member {
    /// Its identity.
    pub id: MemberId,
    /// Its peer URLs.
    pub peer_urls: Vec<String>,
    /// Whether it has no vote.
    pub is_learner: bool,
    /// Its name; empty until it has started for the first time.
    pub name: String,
    /// Its client URLs; empty until it has started for the first time.
    pub client_urls: Vec<String>,
}

/// What matters of a v2 store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V2Store {
    /// The members in ascending order of their ids.
    pub members: Vec<V2Member>,
    /// Members that were removed and must not come back.
    pub removed: Vec<MemberId>,
    /// The cluster version, such as `3.5.0`.
    pub version: Option<String>,
    /// How many keys of users lie at the top of `/1`: 3.6 refuses a store that has any.
    pub user_keys: usize,
}

/// Why JSON is no v2 store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum V2StoreError {
    /// It is not JSON of the right shape.
    #[error("v2 store is not the json of a store")]
    Json {
        /// What the parser said, with line and column.
        source: serde_json::Error,
    },
    /// A member's folder is not named by an id.
    #[error("v2 store: /0/members/{name} is not named by a member id")]
    MemberName {
        /// The name.
        name: String,
    },
    /// A member's attributes are not what they should be.
    #[error("v2 store: {what} of member {id} cannot be read")]
    Attributes {
        /// The member.
        id: MemberId,
        /// Which of the two documents.
        what: &'static str,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A member has no peer URLs.
    #[error("v2 store: member {id} has no raftAttributes")]
    NoRaftAttributes {
        /// The member.
        id: MemberId,
    },
}

impl V2Store {
    /// Takes the membership out of a tree.
    pub fn parse(json: &[u8]) -> Result<Self, V2StoreError> {
        let store: RawStore =
            serde_json::from_slice(json).map_err(|source| V2StoreError::Json { source })?;
        let top = store.root.children.unwrap_or_default();
        let cluster = top.cluster.and_then(|dir| dir.children).unwrap_or_default();
        let listed = cluster
            .members
            .and_then(|dir| dir.children)
            .unwrap_or_default();
        let gone = cluster
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
            removed: gone
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

/// A directory node; whatever is not looked for in it is skipped.
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
                let mut few = BTreeMap::new();
                while let Some((name, value)) = map.next_entry()? {
                    few.insert(name, value);
                    if few.len() > MAX_MEMBERS {
                        return Err(de::Error::invalid_length(few.len(), &self));
                    }
                }
                Ok(BoundedMap(few))
            }
        }

        deserializer.deserialize_map(BoundedMapVisitor(PhantomData))
    }
}

/// The number of items of a map that is otherwise skipped.
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
