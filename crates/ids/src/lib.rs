//! Newtypes for the identities and counters of an etcd cluster, and the providers of its backup.
//!
//! A leaf crate: no dependencies, no I/O. The types make it a compile error to mix up two `u64`s of different
//! meaning.

mod etcd_version;
mod hash_kv;
mod provider;

use std::fmt;

pub use etcd_version::EtcdVersion;
pub use hash_kv::{HashKv, ParseHashKvError};
pub use provider::{StorageProvider, UnknownProvider};

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Displayed as etcd does: lower-case hexadecimal without zero padding.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl $name {
            /// Parses the form etcd prints; `None` for any other text.
            pub fn from_hex(text: &str) -> Option<Self> {
                if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return None; // `from_str_radix` would accept a sign
                }
                u64::from_str_radix(text, 16).ok().map(Self)
            }
        }
    };
}

counter! {
    /// Main revision of the key space: one per writing transaction, without gaps, starting at 2.
    Revision(i64)
}
counter! {
    /// Position of an entry in the raft log.
    RaftIndex(u64)
}
counter! {
    /// Raft term.
    Term(u64)
}
counter! {
    /// Number of a page in a bbolt file; its byte position is this times the page size.
    PageId(u64)
}
counter! {
    /// Number of a bbolt write transaction.
    TxId(u64)
}
hex_id! {
    /// Member ID.
    MemberId
}
hex_id! {
    /// Cluster ID.
    ClusterId
}
hex_id! {
    /// Lease ID. etcd stores it as a signed number with the same bits.
    LeaseId
}

impl Revision {
    /// Revision of a store without any write.
    pub const EMPTY: Self = Self(1);

    /// Returns the next revision.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the previous revision.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl LeaseId {
    /// No lease.
    pub const NONE: Self = Self(0);

    /// Converts from the signed form of etcd's protobuf messages.
    pub fn from_signed(id: i64) -> Self {
        Self(id.cast_unsigned())
    }

    /// Converts to the signed form of etcd's protobuf messages.
    pub fn to_signed(self) -> i64 {
        self.0.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_id_is_formatted_as_in_etcd() {
        assert_eq!(MemberId(0x0e9e_05c5).to_string(), "e9e05c5");
        assert_eq!(
            MemberId::from_hex("8e9e05c52164694d"),
            Some(MemberId(0x8e9e_05c5_2164_694d))
        );
        assert_eq!(MemberId::from_hex("+8"), None);
    }

    #[test]
    fn lease_id_round_trips_through_signed() {
        let id = LeaseId(0xffff_ffff_ffff_fffe);
        assert_eq!(LeaseId::from_signed(id.to_signed()), id);
        assert_eq!(id.to_signed(), -2);
    }
}
