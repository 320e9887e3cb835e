//! Flags that describe the members of the restored cluster.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use mainstay_datadir::{ClusterMembership, InitialCluster, Member, PeerUrl, parse_peer_urls};
use mainstay_verdict::Verdict;

use crate::failure::CommandFailure;

/// Data directory and members of the restored cluster.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Data directory and members")]
pub struct RestoreMemberArgs {
    /// Data directory to restore; an existing one is kept as `<DIR>.before-<time>`
    #[arg(short, long, value_name = "DIR", default_value = "default.etcd")]
    #[arg(env = "MAINSTAY_DATA_DIR")]
    pub(crate) data_dir: PathBuf,

    /// Name of the member to restore
    #[arg(
        long,
        value_name = "NAME",
        default_value = "default",
        env = "MAINSTAY_NAME"
    )]
    pub(crate) name: String,

    /// All members as comma-separated name=url pairs [default: this member only]
    #[arg(long, value_name = "MEMBERS", env = "MAINSTAY_INITIAL_CLUSTER")]
    pub(crate) initial_cluster: Option<InitialCluster>,

    /// Token from which cluster and member ids are derived [default: random]
    ///
    /// A new token keeps members of the old cluster from joining the new one. If members are restored by separate
    /// runs, give every run the same token.
    #[arg(long, value_name = "TOKEN", env = "MAINSTAY_INITIAL_CLUSTER_TOKEN")]
    pub(crate) initial_cluster_token: Option<String>,

    /// Comma-separated peer URLs of this member
    #[arg(long, value_name = "URLS", default_value = "http://localhost:2380")]
    #[arg(env = "MAINSTAY_INITIAL_ADVERTISE_PEER_URLS")]
    pub(crate) initial_advertise_peer_urls: String,

    /// Restore the data directories of all members in one run, as `<DIR>/<member name>`
    #[arg(long)]
    pub(crate) all_members: bool,
}

/// A data directory to restore.
#[derive(Clone, Debug)]
pub(crate) struct MemberDir {
    pub(crate) member: Member,
    pub(crate) data_dir: PathBuf,
}

/// The restored cluster and the data directories to restore in this run.
#[derive(Clone, Debug)]
pub struct NewCluster {
    /// All members, including those restored by other runs.
    pub(crate) membership: ClusterMembership,
    /// Token from which the ids are derived.
    pub(crate) token: String,
    /// Directories of this run; never empty.
    pub(crate) member_dirs: Vec<MemberDir>,
}

impl RestoreMemberArgs {
    /// Derives ids and directories from the flags.
    pub fn build_new_cluster(&self, now: Timestamp) -> Result<NewCluster, CommandFailure> {
        let usage = |reason: String| CommandFailure::from_reason(Verdict::Usage, reason);
        let urls = parse_peer_urls(&self.initial_advertise_peer_urls)
            .map_err(|error| usage(format!("--initial-advertise-peer-urls: {error}")))?;
        let listed = match &self.initial_cluster {
            Some(listed) => listed.clone(),
            None => InitialCluster::single_member(&self.name, urls.clone())?,
        };
        let is_shared = listed.members().len() > 1 && !self.all_members;
        let token = match &self.initial_cluster_token {
            Some(token) => token.clone(),
            // Random tokens of separate runs would give the members different cluster ids.
            None if is_shared => {
                return Err(usage(
                    "restoring one of several members requires --initial-cluster-token"
                        .into(),
                )
                .with_next_step(
                    "give every run the same new token, or restore all directories in one run with --all-members",
                ));
            }
            None => generate_token(now),
        };
        let membership = ClusterMembership::new(&listed, &token)?;
        let member_dirs = self.build_member_dirs(&membership, &urls)?;
        Ok(NewCluster {
            membership,
            token,
            member_dirs,
        })
    }

    fn build_member_dirs(
        &self,
        membership: &ClusterMembership,
        urls: &[PeerUrl],
    ) -> Result<Vec<MemberDir>, CommandFailure> {
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

/// Generates a random token: every [`RandomState`] has random keys.
fn generate_token(now: Timestamp) -> String {
    format!(
        "restored-{:016x}",
        RandomState::new().hash_one(now.as_nanosecond())
    )
}
