//! What the records say, in types that cannot be mixed up.
//!
//! Each type decodes from and encodes to the message of the same name; numbers become ids, and a number that
//! has no meaning is `None` or an error at the place that knows the file.

use bytes::Bytes;
use mainstay_ids::{MemberId, RaftIndex, Term};
use prost::Message as _;

use crate::message;

/// What an entry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A request to the state machine, or the empty entry of a new leader.
    Normal,
    /// A change of the membership.
    ConfChange,
    /// A change of the membership in the second form, which etcd itself never proposes.
    ConfChangeV2,
}

impl EntryKind {
    fn number(self) -> i32 {
        match self {
            Self::Normal => 0,
            Self::ConfChange => 1,
            Self::ConfChangeV2 => 2,
        }
    }

    fn from_number(number: i32) -> Option<Self> {
        [Self::Normal, Self::ConfChange, Self::ConfChangeV2]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

/// One entry of the raft log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its position.
    pub index: RaftIndex,
    /// The term of the leader that proposed it.
    pub term: Term,
    /// What it asks for.
    pub kind: EntryKind,
    /// The request; empty for the entry a new leader opens its term with.
    pub data: Bytes,
}

/// Why an entry's bytes make no entry.
#[derive(Debug)]
pub(crate) enum EntryFault {
    Malformed(prost::DecodeError),
    UnknownKind(i32),
}

impl Entry {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let data = (!self.data.is_empty()).then(|| self.data.clone());
        let (kind, term, index) = (self.kind.number(), self.term.0, self.index.0);
        message::Entry {
            kind,
            term,
            index,
            data,
        }
        .encode_to_vec()
    }

    pub(crate) fn decode(bytes: Bytes) -> Result<Self, EntryFault> {
        let wire = message::Entry::decode(bytes).map_err(EntryFault::Malformed)?;
        let kind = EntryKind::from_number(wire.kind).ok_or(EntryFault::UnknownKind(wire.kind))?;
        Ok(Self {
            index: RaftIndex(wire.index),
            term: Term(wire.term),
            kind,
            data: wire.data.unwrap_or_default(),
        })
    }
}

/// What a member promised: the term it is in, whom it voted for, what it knows to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardState {
    /// The term.
    pub term: Term,
    /// The candidate that got the vote; 0 for none.
    pub vote: MemberId,
    /// The newest committed entry. On disk it may trail what was applied.
    pub commit: RaftIndex,
}

impl HardState {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let (term, vote, commit) = (self.term.0, self.vote.0, self.commit.0);
        message::HardState {
            term,
            vote,
            commit,
            entry_data: None,
        }
        .encode_to_vec()
    }
}

impl From<&message::HardState> for HardState {
    fn from(wire: &message::HardState) -> Self {
        Self {
            term: Term(wire.term),
            vote: MemberId(wire.vote),
            commit: RaftIndex(wire.commit),
        }
    }
}

/// The membership as raft sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// Members with a vote.
    pub voters: Vec<MemberId>,
    /// Members without a vote.
    pub learners: Vec<MemberId>,
    /// Voters of the configuration being left.
    pub voters_outgoing: Vec<MemberId>,
    /// Voters that become learners once the configuration has been left.
    pub learners_next: Vec<MemberId>,
    /// Whether the joint configuration is left by itself.
    pub auto_leave: bool,
}

impl ConfState {
    /// A plain configuration of voters.
    pub fn from_voters(voters: Vec<MemberId>) -> Self {
        Self {
            voters,
            ..Self::default()
        }
    }

    /// The bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        message::ConfState::from(self).encode_to_vec()
    }
}

impl From<&ConfState> for message::ConfState {
    fn from(state: &ConfState) -> Self {
        let numbers = |ids: &[MemberId]| ids.iter().map(|id| id.0).collect();
        Self {
            voters: numbers(&state.voters),
            learners: numbers(&state.learners),
            voters_outgoing: numbers(&state.voters_outgoing),
            learners_next: numbers(&state.learners_next),
            auto_leave: state.auto_leave,
        }
    }
}

impl From<message::ConfState> for ConfState {
    fn from(wire: message::ConfState) -> Self {
        let ids = |numbers: Vec<u64>| numbers.into_iter().map(MemberId).collect();
        Self {
            voters: ids(wire.voters),
            learners: ids(wire.learners),
            voters_outgoing: ids(wire.voters_outgoing),
            learners_next: ids(wire.learners_next),
            auto_leave: wire.auto_leave,
        }
    }
}

/// The mark a raft snapshot leaves in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMark {
    /// The last entry the snapshot covers.
    pub index: RaftIndex,
    /// The term of that entry.
    pub term: Term,
    /// The membership at that entry; etcd 3.4 does not write it.
    pub conf_state: Option<ConfState>,
}

impl SnapshotMark {
    /// The mark the first segment of a log begins with.
    pub const START: Self = Self {
        index: RaftIndex(0),
        term: Term(0),
        conf_state: None,
    };

    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let conf_state = self.conf_state.as_ref().map(message::ConfState::from);
        message::SnapshotMark {
            index: self.index.0,
            term: self.term.0,
            conf_state,
        }
        .encode_to_vec()
    }
}

impl From<message::SnapshotMark> for SnapshotMark {
    fn from(wire: message::SnapshotMark) -> Self {
        Self {
            index: RaftIndex(wire.index),
            term: Term(wire.term),
            conf_state: wire.conf_state.map(ConfState::from),
        }
    }
}

/// What a membership change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfChangeKind {
    /// A voter joins, or a learner is promoted.
    AddNode,
    /// A member leaves.
    RemoveNode,
    /// A member changes its peer URLs.
    UpdateNode,
    /// A learner joins.
    AddLearner,
}

impl ConfChangeKind {
    fn number(self) -> i32 {
        match self {
            Self::AddNode => 0,
            Self::RemoveNode => 1,
            Self::UpdateNode => 2,
            Self::AddLearner => 3,
        }
    }
}

/// The payload of an [`EntryKind::ConfChange`] entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfChange {
    /// Identity of the proposal; 0 in a log written by a restore.
    pub id: u64,
    /// What changes.
    pub kind: ConfChangeKind,
    /// Whom it concerns.
    pub node: MemberId,
    /// The member as JSON.
    pub context: Bytes,
}

impl ConfChange {
    /// The bytes of the payload.
    pub fn encode(&self) -> Vec<u8> {
        let context = (!self.context.is_empty()).then(|| self.context.clone());
        let (id, kind, node) = (self.id, self.kind.number(), self.node.0);
        message::ConfChange {
            id,
            kind,
            node,
            context,
        }
        .encode_to_vec()
    }

    /// Reads a payload; `None` when it is not one.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        use ConfChangeKind::{AddLearner, AddNode, RemoveNode, UpdateNode};
        let wire = message::ConfChange::decode(payload).ok()?;
        let kind = [AddNode, RemoveNode, UpdateNode, AddLearner]
            .into_iter()
            .find(|kind| kind.number() == wire.kind)?;
        Some(Self {
            id: wire.id,
            kind,
            node: MemberId(wire.node),
            context: wire.context.unwrap_or_default(),
        })
    }
}
