//! Members of an etcd cluster in pods, asked from outside: each by the address of its pod.

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
use mainstay_testkit::etcd::{list_keys_at, current_revision};
use serde_json::Value;
use tokio::time::timeout;

use super::identity::TlsIdentity;
use super::wait::{WaitTimeout, eventually};

/// Where etcd serves clients.
pub(super) const CLIENT_PORT: u16 = 2379;
/// Where the sidecar answers.
const SIDECAR_PORT: u16 = 8080;
/// How long an answer of the sidecar may take.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may take; who writes without pause waits for less.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer of etcd may take: longer than an election on a machine that is busy.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Why nothing is known about members.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// They are not ready, or not at the same revision.
    #[error(transparent)]
    Timeout(#[from] WaitTimeout),
    /// Members tell different histories.
    #[error("members disagree about revision {revision}")]
    Disagree {
        /// Up to where.
        revision: Revision,
    },
}

/// A member, as its pod is now.
#[derive(Clone, Debug)]
pub struct MemberPod {
    /// The pod's name.
    pub pod: String,
    /// The pod's identity: another one after the pod was replaced.
    pub uid: String,
    /// The pod's address.
    pub address: Ipv4Addr,
    /// What its clients need, if they need certificates.
    identity: Option<Arc<TlsIdentity>>,
}

impl PartialEq for MemberPod {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
}

impl MemberPod {
    /// The member of a pod that is ready and stays.
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

    /// What its sidecar says of itself, where that is not encrypted; `None` when it does not answer.
    pub async fn sidecar_status(&self) -> Option<Value> {
        let url = format!("http://{}:{SIDECAR_PORT}/status", self.address);
        let answer = timeout(SIDECAR_TIMEOUT, reqwest::get(url)).await.ok()?.ok()?;
        timeout(SIDECAR_TIMEOUT, answer.json()).await.ok()?.ok()
    }

    /// A client of this very member.
    pub async fn client(&self) -> Result<Client, Error> {
        connect(self.address, self.identity.as_deref()).await
    }

    /// Who it thinks leads; `None` when nobody does, or it does not answer.
    pub async fn leader_id(&self) -> Option<MemberId> {
        let mut client = self.client().await.ok()?;
        let leader = client.status().await.ok()?.leader();
        (leader != 0).then_some(MemberId(leader))
    }

    /// Its own identity; `None` when it does not answer.
    pub async fn member_id(&self) -> Option<MemberId> {
        let mut client = self.client().await.ok()?;
        let status = client.status().await.ok()?;
        Some(MemberId(status.header()?.member_id()))
    }
}

/// A client at an address, which may be down.
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

/// The members of the pods a selector finds, by name, once there are so many, all are ready and `is_wanted`.
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
        let members = found.iter().map(|pod| MemberPod::from_ready_pod(pod, identity));
        let members: Option<Vec<MemberPod>> = members.collect();
        members.filter(|members| members.len() == count && members.iter().all(&is_wanted))
    })
    .await
}

/// What a whole cluster of etcd holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpaceContent {
    /// Up to where.
    pub revision: Revision,
    /// Every key.
    pub keys: Vec<Kv>,
    /// The hash over the whole history, which every member told.
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

/// What every one of the members holds now.
pub async fn read_key_space(members: &[MemberPod]) -> Result<KeySpaceContent, MemberError> {
    let Some(first) = members.first() else {
        return read_key_space_at(members, Revision(0)).await;
    };
    let newest = async || {
        let client = first.client().await.ok()?;
        current_revision(&mut client.kv_client()).await.ok()
    };
    let revision = eventually("a quorum that tells its revision", newest).await?;
    read_key_space_at(members, revision).await
}

/// What every one of the members held at a revision.
pub async fn read_key_space_at(members: &[MemberPod], revision: Revision) -> Result<KeySpaceContent, MemberError> {
    let told = async || {
        let mut hashes = BTreeSet::new();
        for member in members {
            let mut client = member.client().await.ok()?;
            let at = client.status().await.ok()?.header()?.revision();
            if at < revision.0 {
                return None; // it is still being told
            }
            // A learner tells none, and a member may learn late that it is none any more.
            let told = client.hash_kv(revision.0).await.ok()?;
            hashes.insert((told.compact_version(), told.hash()));
        }
        let compactions: BTreeSet<i64> = hashes.iter().map(|(compacted, _)| *compacted).collect();
        (compactions.len() < 2).then_some(hashes) // else one of them is still compacting
    };
    let hashes = eventually("every member at the same revision", told).await?;
    let mut hashes = hashes.into_iter().map(|(_, hash)| hash);
    let (Some(hash), None, Some(first)) = (hashes.next(), hashes.next(), members.first()) else {
        return Err(MemberError::Disagree { revision });
    };
    let all = async || {
        let client = first.client().await.ok()?;
        list_keys_at(&mut client.kv_client(), revision).await.ok()
    };
    let keys = eventually("a quorum that tells its keys", all).await?;
    Ok(KeySpaceContent {
        revision,
        keys,
        hash,
    })
}
