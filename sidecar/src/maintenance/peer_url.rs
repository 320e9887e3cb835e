//! Updates the peer URLs of the own member in the member list if they differ from the configured ones.
//!
//! A member restored alone starts with the address that its restore was given; other members use the address in the
//! member list.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::info;

use super::{
    CallError, Connect, call_with_timeout, connect_with_timeout, read_members, read_status,
};

/// Timeout of the update, which needs the quorum.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Result of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerUrlOutcome {
    /// The member list has the configured URLs; nothing was changed.
    UpToDate,
    Updated {
        /// URLs before the update.
        before: Vec<String>,
    },
    /// The own member is not in the member list.
    NotAMember,
}

/// Updates the peer URLs of the own member if they differ from the configured ones.
///
/// The order of the URLs does not matter. Without configured URLs nothing is done.
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
    let member = read_status(&mut own).await?.member;
    let list = read_members(&mut own).await?;
    let Some(entry) = list.into_iter().find(|entry| entry.id == member) else {
        return Ok(PeerUrlOutcome::NotAMember);
    };
    let before = entry.peer_urls;
    let set = |urls: &[String]| urls.iter().cloned().collect::<BTreeSet<String>>();
    if set(&before) == set(configured) {
        return Ok(PeerUrlOutcome::UpToDate);
    }
    let update = own.member_update(member.0, configured);
    call_with_timeout("update peer URLs", UPDATE_TIMEOUT, update).await?;
    info!(member = %member, "peer URLs updated");
    Ok(PeerUrlOutcome::Updated { before })
}
