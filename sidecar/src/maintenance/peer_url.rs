//! Updates the peer URLs of the own member in the member list if they differ from the configured ones.
//!
//! A member restored alone starts with the address that its restore was given; other members use the address in the
//! member list.

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_ids::MemberId;
use tracing::info;

use super::{CallError, Connect, REQUEST_TIMEOUT, call_with_timeout, connect_with_timeout};

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
    let status = call_with_timeout("status", REQUEST_TIMEOUT, own.status()).await?;
    let call = "status";
    let header = status.header().ok_or(CallError::NoHeader { call })?;
    let member = MemberId(header.member_id());
    let list = call_with_timeout("list members", REQUEST_TIMEOUT, own.member_list()).await?;
    let Some(entry) = list.members().iter().find(|entry| entry.id() == member.0) else {
        return Ok(PeerUrlOutcome::NotAMember);
    };
    let before = entry.peer_urls().to_vec();
    let set = |urls: &[String]| urls.iter().cloned().collect::<BTreeSet<String>>();
    if set(&before) == set(configured) {
        return Ok(PeerUrlOutcome::UpToDate);
    }
    let update = own.member_update(member.0, configured);
    call_with_timeout("update peer URLs", UPDATE_TIMEOUT, update).await?;
    info!(member = %member, "peer URLs updated");
    Ok(PeerUrlOutcome::Updated { before })
}
