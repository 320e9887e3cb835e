//! Several members of one cluster on this machine.

use super::process::free_url;
use super::{Etcd, EtcdOptions, EtcdVersion};

/// Members that founded a cluster together, `m0`, `m1`, and so on.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members, in the order of their names.
    pub members: Vec<Etcd>,
}

impl EtcdCluster {
    /// Starts `size` members of a new cluster, each with these options, and waits for all.
    ///
    /// # Panics
    /// With a member's log when it does not come up.
    pub async fn start(version: EtcdVersion, size: usize, options: &EtcdOptions) -> Self {
        let founders: Vec<_> = (0..size).map(|i| (format!("m{i}"), free_url())).collect();
        let members = founders
            .iter()
            .map(|(name, url)| (version, options.clone().name(name).peer_url(url)))
            .collect();
        Self::start_members(members).await
    }

    /// Starts members with options of their own, for directories a restore laid out. Each option
    /// set needs a name and a peer URL; the list of founders follows from them.
    ///
    /// # Panics
    /// With a member's log when it does not come up.
    pub async fn start_members(members: Vec<(EtcdVersion, EtcdOptions)>) -> Self {
        let founders: Vec<String> = members
            .iter()
            .map(|(_, options)| {
                let name = options.name.as_deref().expect("a member's name");
                format!(
                    "{name}={}",
                    options.peer_url.as_deref().expect("a member's peer URL")
                )
            })
            .collect();
        let founders = founders.join(",");
        // All are started before any is waited for: alone, none has a quorum.
        let mut members: Vec<Etcd> = members
            .into_iter()
            .map(|(version, options)| Etcd::spawn(version, options.initial_cluster(&founders)))
            .collect();
        for member in &mut members {
            member
                .wait_until_healthy()
                .await
                .unwrap_or_else(|error| panic!("{error}"));
        }
        Self { members }
    }
}
