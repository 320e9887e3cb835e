//! Connects to the members of an etcd cluster, each at the address of its pod.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use mainstay_ids::{MemberId, Revision};
use mainstay_testkit::Kv;
use mainstay_testkit::etcd::{current_revision, list_keys_at};
use serde_json::Value;
use tokio::time::timeout;

use super::tls_identity::TlsIdentity;
use super::wait::{WaitTimeout, eventually};

/// Client port of etcd.
pub(super) const CLIENT_PORT: u16 = 2379;
/// HTTP port of the sidecar.
const SIDECAR_PORT: u16 = 8080;
/// Timeout of a request to the sidecar.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a request to etcd: longer than an election on a loaded machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Why members could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// Members are not ready, or not at the same revision.
    #[error(transparent)]
    Timeout(#[from] WaitTimeout),
    /// Members have different histories.
    #[error("members have different content at revision {revision}")]
    Disagree {
        /// The compared revision.
        revision: Revision,
    },
}

/// A member and its pod.
#[derive(Clone, Debug)]
pub struct MemberPod {
    /// Name of the pod.
    pub pod: String,
    /// uid of the pod; it changes when the pod is replaced.
    pub uid: String,
    /// Address of the pod.
    pub address: Ipv4Addr,
    /// Certificates for clients, if the Etcd uses TLS.
    identity: Option<Arc<TlsIdentity>>,
}

impl PartialEq for MemberPod {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
}

impl MemberPod {
    /// The member of a pod; `None` if the pod is not ready or is terminating.
    fn from_ready_pod(pod: &Pod, identity: Option<&Arc<TlsIdentity>>) -> Option<Self> {
        let status = pod.status.as_ref()?;
        let mut conditions = status.conditions.iter().flatten();
        let is_ready =
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        let member = Self {
            pod: pod.metadata.name.clone()?,
            uid: pod.metadata.uid.clone()?,
            address: status.pod_ip.as_ref()?.parse().ok()?,
            identity: identity.cloned(),
        };
        (is_ready && !is_leaving).then_some(member)
    }

    /// The `/status` of its sidecar, without TLS; `None` if it does not respond.
    pub async fn sidecar_status(&self) -> Option<Value> {
        let url = format!("http://{}:{SIDECAR_PORT}/status", self.address);
        let answer = timeout(SIDECAR_TIMEOUT, reqwest::get(url))
            .await
            .ok()?
            .ok()?;
        timeout(SIDECAR_TIMEOUT, answer.json()).await.ok()?.ok()
    }

    /// A client of this member only.
    pub async fn client(&self) -> Result<Client, Error> {
        connect(self.address, self.identity.as_deref()).await
    }

    /// The leader's ID as this member reports it; `None` without a leader or a response.
    pub async fn leader_id(&self) -> Option<MemberId> {
        let mut client = self.client().await.ok()?;
        let leader = client.status().await.ok()?.leader();
        (leader != 0).then_some(MemberId(leader))
    }

    /// Its member ID; `None` if it does not respond.
    pub async fn member_id(&self) -> Option<MemberId> {
        let mut client = self.client().await.ok()?;
        let status = client.status().await.ok()?;
        Some(MemberId(status.header()?.member_id()))
    }
}

/// A client of an address, which may be down.
pub async fn connect(address: Ipv4Addr, identity: Option<&TlsIdentity>) -> Result<Client, Error> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(REQUEST_TIMEOUT);
    let mut scheme = "http";
    if let Some(identity) = identity {
        options = options.with_tls(identity.tls_options());
        scheme = "https";
    }
    let url = format!("{scheme}://{address}:{CLIENT_PORT}");
    Client::connect([url], Some(options)).await
}

/// Waits until `count` pods of a selector are ready and match `is_wanted`; returns their members by name.
pub async fn wait_for_members(
    pods: &Api<Pod>,
    (selector, identity): (&str, Option<&Arc<TlsIdentity>>),
    count: usize,
    is_wanted: impl Fn(&MemberPod) -> bool,
) -> Result<Vec<MemberPod>, WaitTimeout> {
    let params = ListParams::default().labels(selector);
    eventually(&format!("{count} ready members"), async || {
        let mut found = pods.list(&params).await.ok()?.items;
        found.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
        let members = found
            .iter()
            .map(|pod| MemberPod::from_ready_pod(pod, identity));
        let members: Option<Vec<MemberPod>> = members.collect();
        members.filter(|members| members.len() == count && members.iter().all(&is_wanted))
    })
    .await
}

/// The content of an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpaceContent {
    /// The compared revision.
    pub revision: Revision,
    /// All keys.
    pub keys: Vec<Kv>,
    /// HashKV over the whole history, equal on all members.
    pub hash: u32,
}

impl fmt::Display for KeySpaceContent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            revision,
            keys,
            hash,
        } = self;
        write!(
            out,
            "revision {revision}, {} keys, HashKV {hash}",
            keys.len()
        )
    }
}

/// The content that all members hold now.
pub async fn read_key_space(members: &[MemberPod]) -> Result<KeySpaceContent, MemberError> {
    let Some(first) = members.first() else {
        return read_key_space_at(members, Revision(0)).await;
    };
    let newest = async || {
        let client = first.client().await.ok()?;
        current_revision(&mut client.kv_client()).await.ok()
    };
    let revision = eventually("a member with quorum to report its revision", newest).await?;
    read_key_space_at(members, revision).await
}

/// The content that all members held at a revision.
pub async fn read_key_space_at(
    members: &[MemberPod],
    revision: Revision,
) -> Result<KeySpaceContent, MemberError> {
    let reported = async || {
        let mut hashes = BTreeSet::new();
        for member in members {
            let mut client = member.client().await.ok()?;
            let at = client.status().await.ok()?.header()?.revision();
            if at < revision.0 {
                return None; // this member has not applied the revision yet
            }
            // A learner does not serve HashKV, and a promoted member may apply its promotion late.
            let response = client.hash_kv(revision.0).await.ok()?;
            hashes.insert((response.compact_version(), response.hash()));
        }
        let compactions: BTreeSet<i64> = hashes.iter().map(|(compacted, _)| *compacted).collect();
        (compactions.len() < 2).then_some(hashes) // otherwise a member is still compacting
    };
    let hashes = eventually("every member to reach the same revision", reported).await?;
    let mut hashes = hashes.into_iter().map(|(_, hash)| hash);
    let (Some(hash), None, Some(first)) = (hashes.next(), hashes.next(), members.first()) else {
        return Err(MemberError::Disagree { revision });
    };
    let all = async || {
        let client = first.client().await.ok()?;
        list_keys_at(&mut client.kv_client(), revision).await.ok()
    };
    let keys = eventually("a member with quorum to return its keys", all).await?;
    Ok(KeySpaceContent {
        revision,
        keys,
        hash,
    })
}
