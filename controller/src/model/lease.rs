//! Parses the holder of a member Lease, which the sidecar of the member writes.

use mainstay_ids::{ClusterId, MemberId};

/// The holder of a member's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberLeaseHolder {
    pub(crate) member_id: MemberId,
    /// `None` for a Lease of etcd-backup-restore, which does not write it.
    pub(crate) cluster_id: Option<ClusterId>,
    /// Whether the member was the leader at the last renewal.
    pub(crate) is_leader: bool,
}

impl MemberLeaseHolder {
    /// Parses `member:role` and `member:cluster:role`; `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (first, second, third, more) =
            (parts.next()?, parts.next()?, parts.next(), parts.next());
        let member_id = MemberId::from_hex(first)?;
        let (cluster_id, role) = match (third, more) {
            (None, _) => (None, second),
            (Some(role), None) => (Some(ClusterId::from_hex(second)?), role),
            (Some(_), Some(_)) => return None,
        };
        let is_leader = match role {
            "Leader" => true,
            "Member" | "Learner" => false,
            _ => return None,
        };
        Some(Self {
            member_id,
            cluster_id,
            is_leader,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lease_holder_formats_are_parsed() {
        let old = MemberLeaseHolder::parse("8e9e05c52164694d:Leader").unwrap();
        assert_eq!(
            (old.member_id.0, old.cluster_id, old.is_leader),
            (0x8e9e_05c5_2164_694d, None, true)
        );
        let new = MemberLeaseHolder::parse("8e9e05c52164694d:cdf818194e3a8c32:Member").unwrap();
        assert_eq!(
            (new.cluster_id, new.is_leader),
            (Some(ClusterId(0xcdf8_1819_4e3a_8c32)), false)
        );
    }

    #[test]
    fn invalid_lease_holder_is_ignored() {
        for text in [
            "",
            "Leader",
            "xyz:Leader",
            "1:2:3:Leader",
            "1:2:Boss",
            "1:Boss",
            "12",
        ] {
            assert_eq!(MemberLeaseHolder::parse(text), None, "{text}");
        }
    }
}
