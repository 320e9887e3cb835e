//! Contents of the records as typed values.
//!
//! Each type decodes from and encodes to the message of the same name. Numbers become ids; an unknown number is `None`,
//! or an error where the file is known.

use bytes::Bytes;
use mainstay_ids::{MemberId, RaftIndex, Term};
use prost::Message as _;

use crate::message;

/// Type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A request, or the empty entry of a new leader.
    Normal,
    /// A membership change.
    ConfChange,
    /// A membership change in the V2 form, which etcd never proposes.
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
    /// Position in the log.
    pub index: RaftIndex,
    /// The term of the leader that proposed it.
    pub term: Term,
    /// Type of the entry.
    pub kind: EntryKind,
    /// The encoded request; empty for the first entry of a new leader.
    pub data: Bytes,
}

/// Why bytes are not an entry.
#[derive(Debug)]
pub(crate) enum EntryFault {
    Malformed(prost::DecodeError),
    UnknownKind(i32),
}

impl Entry {
    /// Encodes the data of the record.
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

/// Raft hard state of a member: term, vote and commit index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardState {
    /// Current term.
    pub term: Term,
    /// Candidate this member voted for; 0 for none.
    pub vote: MemberId,
    /// Commit index. On disk it may lag behind the applied index.
    pub commit: RaftIndex,
}

impl HardState {
    /// Encodes the data of the record.
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

/// Raft membership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// Voting members.
    pub voters: Vec<MemberId>,
    /// Non-voting members.
    pub learners: Vec<MemberId>,
    /// Voters of the outgoing configuration during a joint change.
    pub voters_outgoing: Vec<MemberId>,
    /// Voters that become learners after the joint change.
    pub learners_next: Vec<MemberId>,
    /// True when raft leaves the joint configuration automatically.
    pub auto_leave: bool,
}

impl ConfState {
    /// Creates a configuration of voters only.
    pub fn from_voters(voters: Vec<MemberId>) -> Self {
        Self {
            voters,
            ..Self::default()
        }
    }

    /// Encodes the message.
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

/// The record of a raft snapshot in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMark {
    /// Index of the last entry in the snapshot.
    pub index: RaftIndex,
    /// Term of that entry.
    pub term: Term,
    /// Membership at that entry; `None` when written by etcd 3.4.
    pub conf_state: Option<ConfState>,
}

impl SnapshotMark {
    /// The snapshot record at the start of every log.
    pub const START: Self = Self {
        index: RaftIndex(0),
        term: Term(0),
        conf_state: None,
    };

    /// Encodes the data of the record.
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

/// Type of a membership change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfChangeKind {
    /// Adds a voter, or promotes a learner.
    AddNode,
    /// Removes a member.
    RemoveNode,
    /// Changes the peer URLs of a member.
    UpdateNode,
    /// Adds a learner.
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
    /// Proposal ID; 0 in a log written by a restore.
    pub id: u64,
    /// Type of the change.
    pub kind: ConfChangeKind,
    /// The affected member.
    pub node: MemberId,
    /// The member as JSON.
    pub context: Bytes,
}

impl ConfChange {
    /// Encodes the payload.
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

    /// Decodes a payload; `None` when it is invalid.
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
