//! Rights of principals.

use std::collections::{BTreeSet, HashMap};
use std::str::FromStr;

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Reads and watches, and what clients request to find their way.
    Read,
    /// Transactions, writes, compaction and leases.
    Write,
    /// Snapshots, which contain everything, and what slows the server down.
    Maintenance,
}

/// Rights of one principal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights(BTreeSet<Right>);

/// Rights granted to a principal: `name=read,write,maintenance`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrincipalGrant {
    /// Common name of the client certificate.
    pub principal: String,
    /// Its rights.
    pub rights: Rights,
}

/// The text is not a [`PrincipalGrant`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} must be NAME=RIGHT[,RIGHT…] with the rights read, write and maintenance")]
pub struct ParseGrantError {
    text: String,
}

impl FromStr for PrincipalGrant {
    type Err = ParseGrantError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ParseGrantError {
            text: text.to_owned(),
        };
        let (principal, rights) = text.rsplit_once('=').ok_or_else(refused)?;
        let right = |name: &str| match name {
            "read" => Ok(Right::Read),
            "write" => Ok(Right::Write),
            "maintenance" => Ok(Right::Maintenance),
            _ => Err(refused()),
        };
        let rights = rights.split(',').map(right).collect::<Result<_, _>>()?;
        Ok(Self {
            principal: principal.to_owned(),
            rights: Rights(rights),
        })
    }
}

/// Who may do what.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Everything, for everyone who can connect.
    #[default]
    Open,
    /// What is granted.
    Granted(HashMap<String, Rights>),
}

impl Access {
    /// Access by these grants; open when there are none. Grants of one principal add up.
    pub fn by_grants(grants: impl IntoIterator<Item = PrincipalGrant>) -> Self {
        let mut granted: HashMap<String, Rights> = HashMap::new();
        for grant in grants {
            granted
                .entry(grant.principal)
                .or_default()
                .0
                .extend(grant.rights.0);
        }
        if granted.is_empty() {
            Self::Open
        } else {
            Self::Granted(granted)
        }
    }

    /// Returns true when the principal may call the method at this path.
    pub(crate) fn allows(&self, principal: &str, path: &str) -> bool {
        match self {
            Self::Open => true,
            Self::Granted(granted) => granted
                .get(principal)
                .is_some_and(|rights| rights.0.contains(&right_for(path))),
        }
    }
}

/// The right a method needs. An unknown one needs the strongest.
fn right_for(path: &str) -> Right {
    match path {
        "/etcdserverpb.KV/Range"
        | "/etcdserverpb.Watch/Watch"
        | "/etcdserverpb.Lease/LeaseTimeToLive"
        | "/etcdserverpb.Lease/LeaseLeases"
        | "/etcdserverpb.Cluster/MemberList"
        | "/etcdserverpb.Auth/AuthStatus"
        | "/etcdserverpb.Maintenance/Status" => Right::Read,
        // A transaction may contain writes. API servers compact.
        "/etcdserverpb.KV/Put"
        | "/etcdserverpb.KV/DeleteRange"
        | "/etcdserverpb.KV/Txn"
        | "/etcdserverpb.KV/Compact"
        | "/etcdserverpb.Lease/LeaseGrant"
        | "/etcdserverpb.Lease/LeaseRevoke"
        | "/etcdserverpb.Lease/LeaseKeepAlive" => Right::Write,
        _ => Right::Maintenance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(grants: &[&str]) -> Access {
        Access::by_grants(grants.iter().map(|grant| grant.parse().unwrap()))
    }

    #[test]
    fn principal_has_the_rights_that_were_granted_and_no_others() {
        let access = access(&["apiserver=read,write", "backup=maintenance", "backup=read"]);
        assert!(access.allows("apiserver", "/etcdserverpb.KV/Txn"));
        assert!(!access.allows("apiserver", "/etcdserverpb.Maintenance/Snapshot"));
        assert!(access.allows("backup", "/etcdserverpb.Maintenance/Snapshot"));
        assert!(access.allows("backup", "/etcdserverpb.KV/Range"));
        assert!(!access.allows("backup", "/etcdserverpb.KV/Put"));
        assert!(
            !access.allows("", "/etcdserverpb.KV/Range"),
            "no certificate"
        );
        assert!(!access.allows("apiserver", "/unknown/Method"));
    }

    #[test]
    fn without_grants_everyone_who_can_connect_may_do_everything() {
        assert!(Access::by_grants([]).allows("", "/etcdserverpb.Maintenance/Snapshot"));
    }

    #[test]
    fn name_of_a_principal_may_contain_equals_signs() {
        let grant: PrincipalGrant = "CN=a=read".parse().unwrap();
        assert_eq!(grant.principal, "CN=a");
        for invalid in ["a", "a=", "a=all", "a=read,"] {
            assert!(invalid.parse::<PrincipalGrant>().is_err(), "{invalid}");
        }
    }
}
