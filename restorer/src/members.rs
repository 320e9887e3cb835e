//! Flags that say who the members of the restored cluster are.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use mainstay_datadir::{InitialCluster, Member, ClusterMembership, PeerUrl, parse_peer_urls};

use crate::failure::{CommandFailure, ExitVerdict};

/// Where the data directory is and who the members are.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Data directory and members")]
pub struct RestoreMemberArgs {
    /// The data directory. An existing one is kept as `<DIR>.before-<time>`
    #[arg(short, long, value_name = "DIR", default_value = "default.etcd")]
    #[arg(env = "MAINSTAY_DATA_DIR")]
    pub data_dir: PathBuf,

    /// Name of the member the directory is for
    #[arg(
        long,
        value_name = "NAME",
        default_value = "default",
        env = "MAINSTAY_NAME"
    )]
    pub name: String,

    /// All members, name=url pairs separated by commas [default: the member itself, alone]
    #[arg(long, value_name = "MEMBERS", env = "MAINSTAY_INITIAL_CLUSTER")]
    pub initial_cluster: Option<InitialCluster>,

    /// Token the ids of cluster and members are made with; several members restored by several runs
    /// need the same one [default: a fresh one, so that old members cannot talk to the new cluster]
    #[arg(long, value_name = "TOKEN", env = "MAINSTAY_INITIAL_CLUSTER_TOKEN")]
    pub initial_cluster_token: Option<String>,

    /// Peer addresses of this member, separated by commas
    #[arg(long, value_name = "URLS", default_value = "http://localhost:2380")]
    #[arg(env = "MAINSTAY_INITIAL_ADVERTISE_PEER_URLS")]
    pub initial_advertise_peer_urls: String,

    /// Make the directories of all members in one run, as `<DIR>/<member name>`
    #[arg(long)]
    pub all_members: bool,
}

/// A directory to be made.
#[derive(Clone, Debug)]
pub struct MemberDir {
    /// Whose it is.
    pub member: Member,
    /// Where.
    pub data_dir: PathBuf,
}

/// The restored cluster and the directories to make.
#[derive(Clone, Debug)]
pub struct NewCluster {
    /// All members.
    pub membership: ClusterMembership,
    /// The token the ids were made with.
    pub token: String,
    /// The directories of this run; never empty.
    pub member_dirs: Vec<MemberDir>,
}

impl RestoreMemberArgs {
    /// Works out ids and directories.
    pub fn build_new_cluster(&self, now: Timestamp) -> Result<NewCluster, CommandFailure> {
        let usage = |reason: String| CommandFailure::from_reason(ExitVerdict::Usage, reason);
        let urls = parse_peer_urls(&self.initial_advertise_peer_urls)
            .map_err(|error| usage(format!("--initial-advertise-peer-urls: {error}")))?;
        let listed = match &self.initial_cluster {
            Some(listed) => listed.clone(),
            None => InitialCluster::single_member(&self.name, urls.clone())?,
        };
        let is_shared = listed.members().len() > 1 && !self.all_members;
        let token = match &self.initial_cluster_token {
            Some(token) => token.clone(),
            None if is_shared => {
                return Err(usage(
                    "one of several members is restored, and no --initial-cluster-token is given"
                        .into(),
                )
                .with_next_step(
                    "give every run the same fresh token, or make all directories in one run with \
                     --all-members",
                ));
            }
            None => generate_token(now),
        };
        let membership = ClusterMembership::new(&listed, &token)?;
        let seats = self.build_member_dirs(&membership, &urls)?;
        Ok(NewCluster {
            membership,
            token,
            member_dirs: seats,
        })
    }

    fn build_member_dirs(&self, membership: &ClusterMembership, urls: &[PeerUrl]) -> Result<Vec<MemberDir>, CommandFailure> {
        if !self.all_members {
            let member = membership.find_member(&self.name, urls)?.clone();
            return Ok(vec![MemberDir {
                member,
                data_dir: self.data_dir.clone(),
            }]);
        }
        let seat = |member: &Member| MemberDir {
            data_dir: self.data_dir.join(&member.name),
            member: member.clone(),
        };
        Ok(membership.members().iter().map(seat).collect())
    }
}

/// Never the same twice: the state of [`RandomState`] is random.
fn generate_token(now: Timestamp) -> String {
    format!(
        "restored-{:016x}",
        RandomState::new().hash_one(now.as_nanosecond())
    )
}
