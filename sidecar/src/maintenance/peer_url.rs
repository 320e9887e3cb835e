//! Tells the cluster where the own member listens for its peers, when that is not what it believes.
//!
//! A member restored alone starts out with whatever address its restore was given; the others find it by what the
//! member list says.

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_ids::MemberId;
use tracing::info;

use super::{REQUEST_TIMEOUT, CallError, Connect, call_with_timeout, connect_with_timeout};

/// How long the update may take: the quorum has to agree.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(30);

/// What the member list says about the own member now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerUrlOutcome {
    /// What is configured; nothing was done.
    UpToDate,
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
pub async fn reconcile_peer_urls(
    connect: &dyn Connect,
    configured: &[String],
) -> Result<PeerUrlOutcome, CallError> {
    if configured.is_empty() {
        return Ok(PeerUrlOutcome::UpToDate);
    }
    let mut own = connect_with_timeout(connect.connect_own()).await?;
    let status = call_with_timeout("status", REQUEST_TIMEOUT, own.status()).await?;
    let call = "status";
    let header = status.header().ok_or(CallError::NoHeader { call })?;
    let member = MemberId(header.member_id());
    let list = call_with_timeout("list the members", REQUEST_TIMEOUT, own.member_list()).await?;
    let Some(entry) = list.members().iter().find(|entry| entry.id() == member.0) else {
        return Ok(PeerUrlOutcome::NotAMember);
    };
    let before = entry.peer_urls().to_vec();
    let set = |urls: &[String]| urls.iter().cloned().collect::<BTreeSet<String>>();
    if set(&before) == set(configured) {
        return Ok(PeerUrlOutcome::UpToDate);
    }
    let update = own.member_update(member.0, configured);
    call_with_timeout("update the peer URLs", UPDATE_TIMEOUT, update).await?;
    info!(member = %member, "peer URLs updated");
    Ok(PeerUrlOutcome::Updated { before })
}
