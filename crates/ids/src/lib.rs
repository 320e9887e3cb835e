//! Newtypes for every identity and counter of an etcd cluster.
//!
//! A leaf crate: no dependencies, no I/O. Two bare `u64`s side by side in a signature are a bug
//! waiting to happen; these types make the mix-up a compile error.

mod hash_kv;

use std::fmt;

pub use hash_kv::{HashKv, ParseHashKvError};

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
        /// Shown as etcd shows it: lower-case hexadecimal without zero padding.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl $name {
            /// Reads the form etcd prints; `None` for anything else.
            pub fn from_hex(text: &str) -> Option<Self> {
                if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return None; // `from_str_radix` would take a sign
                }
                u64::from_str_radix(text, 16).ok().map(Self)
            }
        }
    };
}

counter! {
    /// A main revision of the key space: one number per changing transaction, dense, starting at 2.
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
    /// Position of a page in a bbolt file.
    PageId(u64)
}
counter! {
    /// Number of a bbolt write transaction.
    TxId(u64)
}
hex_id! {
    /// Identity of a member.
    MemberId
}
hex_id! {
    /// Identity of a cluster.
    ClusterId
}
hex_id! {
    /// Identity of a lease. etcd keeps it as a signed number; the bits are the same.
    LeaseId
}

impl Revision {
    /// The revision of a store that never took a write.
    pub const EMPTY: Self = Self(1);

    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The revision before this one.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl LeaseId {
    /// No lease.
    pub const NONE: Self = Self(0);

    /// From the signed form of etcd's protobuf messages.
    pub fn from_signed(id: i64) -> Self {
        Self(id.cast_unsigned())
    }

    /// The signed form of etcd's protobuf messages.
    pub fn to_signed(self) -> i64 {
        self.0.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_shown_as_etcd_shows_it() {
        assert_eq!(MemberId(0x0e9e_05c5).to_string(), "e9e05c5");
        assert_eq!(
            MemberId::from_hex("8e9e05c52164694d"),
            Some(MemberId(0x8e9e_05c5_2164_694d))
        );
        assert_eq!(MemberId::from_hex("+8"), None);
    }

    #[test]
    fn a_lease_id_survives_the_signed_form() {
        let id = LeaseId(0xffff_ffff_ffff_fffe);
        assert_eq!(LeaseId::from_signed(id.to_signed()), id);
        assert_eq!(id.to_signed(), -2);
    }
}
