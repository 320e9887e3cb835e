//! Tells the cluster where the own member listens for its peers, when that is not what it believes.
//!
//! A member restored alone starts out with whatever address its restore was given; the others find it by what the
//! member list says.

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_ids::MemberId;
use tracing::info;

use super::{ANSWER, CallError, Connect, ask, reach};

/// How long the update may take: the quorum has to agree.
const UPDATE: Duration = Duration::from_secs(30);

/// What the member list says about the own member now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerUrls {
    /// What is configured; nothing was done.
    Right,
    /// What is configured; until now it was this.
    Updated {
        /// The URLs before.
        before: Vec<String>,
    },
    /// The own member is not in the list.
    NotAMember,
}

/// Compares the member list with the configured peer URLs of the own member, and updates it where they differ.
///
/// The order of URLs does not matter. Without any configured URL nothing is compared.
///
/// # Errors
/// The own member does not answer, or the update is refused.
pub async fn reconcile(
    connect: &dyn Connect,
    configured: &[String],
) -> Result<PeerUrls, CallError> {
    if configured.is_empty() {
        return Ok(PeerUrls::Right);
    }
    let mut own = reach(connect.own()).await?;
    let status = ask("status", ANSWER, own.status()).await?;
    let call = "status";
    let header = status.header().ok_or(CallError::NoHeader { call })?;
    let member = MemberId(header.member_id());
    let list = ask("list the members", ANSWER, own.member_list()).await?;
    let Some(entry) = list.members().iter().find(|entry| entry.id() == member.0) else {
        return Ok(PeerUrls::NotAMember);
    };
    let before = entry.peer_urls().to_vec();
    let set = |urls: &[String]| urls.iter().cloned().collect::<BTreeSet<String>>();
    if set(&before) == set(configured) {
        return Ok(PeerUrls::Right);
    }
    let update = own.member_update(member.0, configured);
    ask("update the peer URLs", UPDATE, update).await?;
    info!(member = %member, "peer URLs updated");
    Ok(PeerUrls::Updated { before })
}
