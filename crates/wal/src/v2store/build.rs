//! Builds the v2 store of a new cluster with the same bytes as `etcdutl snapshot restore`.

use std::fmt::Write as _;

use mainstay_ids::MemberId;

use crate::go_json::{push_string, push_strings};

/// Capacity of the event history in etcd's v2 store.
pub(super) const EVENT_SLOTS: usize = 1000;

/// Counters of the store in the order etcd writes them. Only creates are counted in a new store.
const STATISTICS: [&str; 16] = [
    "getsSuccess",
    "getsFail",
    "setsSuccess",
    "setsFail",
    "deleteSuccess",
    "deleteFail",
    "updateSuccess",
    "updateFail",
    "createSuccess",
    "createFail",
    "compareAndSwapSuccess",
    "compareAndSwapFail",
    "compareAndDeleteSuccess",
    "compareAndDeleteFail",
    "expireCount",
    "watchers",
];

/// A member of a new cluster.
#[derive(Clone, Copy, Debug)]
pub struct V2BootstrapMember<'a> {
    /// Member ID.
    pub id: MemberId,
    /// Peer URLs, sorted.
    pub peer_urls: &'a [String],
}

/// Returns the v2 store of a cluster whose `members`, in ascending order of IDs, were each added by one entry.
pub fn build_bootstrap_store(members: &[V2BootstrapMember<'_>]) -> String {
    let attributes: Vec<String> = members
        .iter()
        .map(|member| {
            let mut value = String::from("{\"peerURLs\":");
            push_strings(&mut value, member.peer_urls);
            value.push('}');
            value
        })
        .collect();
    let mut out = String::from("{\"Root\":");
    push_tree(&mut out, members, &attributes);
    push_history(&mut out, members, &attributes);
    let count = members.len();
    let _infallible = write!(out, ",\"CurrentIndex\":{count},\"Stats\":{{");
    for (position, name) in STATISTICS.iter().enumerate() {
        let comma = if position > 0 { "," } else { "" };
        let value = if *name == "createSuccess" { count } else { 0 };
        let _infallible = write!(out, "{comma}\"{name}\":{value}");
    }
    out.push_str("},\"CurrentVersion\":2}");
    out
}

fn push_tree(out: &mut String, members: &[V2BootstrapMember<'_>], attributes: &[String]) {
    open_directory(out, "/", 0);
    out.push_str("\"0\":");
    open_directory(out, "/0", 0);
    out.push_str("\"members\":");
    open_directory(out, "/0/members", 1);
    // Go sorts map keys as text, and member IDs have no leading zeros, so this is not the numeric order.
    let mut by_name: Vec<_> = members.iter().zip(attributes).enumerate().collect();
    by_name.sort_by_key(|(_, (member, _))| member.id.to_string());
    for (position, (ordinal, (member, value))) in by_name.into_iter().enumerate() {
        let comma = if position > 0 { "," } else { "" };
        let (id, index) = (member.id, ordinal + 1);
        let _infallible = write!(out, "{comma}\"{id}\":");
        open_directory(out, &format!("/0/members/{id}"), index);
        out.push_str("\"raftAttributes\":");
        open_node(out, &attributes_path(id), index, value);
        out.push_str("null}}}");
    }
    out.push_str("}}}},\"1\":");
    open_directory(out, "/1", 0);
    out.push_str("}}}}");
}

fn push_history(out: &mut String, members: &[V2BootstrapMember<'_>], attributes: &[String]) {
    out.push_str(",\"WatcherHub\":{\"EventHistory\":{\"Queue\":{\"Events\":[");
    for (position, (member, value)) in members.iter().zip(attributes).enumerate() {
        let comma = if position > 0 { "," } else { "" };
        let index = position + 1;
        let _infallible = write!(out, "{comma}{{\"action\":\"create\",\"node\":{{\"key\":");
        push_string(out, &attributes_path(member.id));
        out.push_str(",\"value\":");
        push_string(out, value);
        let _infallible = write!(
            out,
            ",\"modifiedIndex\":{index},\"createdIndex\":{index}}}}}"
        );
    }
    let count = members.len();
    for slot in count..EVENT_SLOTS {
        out.push_str(if slot > 0 { ",null" } else { "null" });
    }
    let _infallible = write!(
        out,
        "],\"Size\":{count},\"Front\":0,\"Back\":{count},\"Capacity\":{EVENT_SLOTS}}},\
         \"StartIndex\":1,\"LastIndex\":{count}}}}}"
    );
}

fn attributes_path(id: MemberId) -> String {
    format!("/0/members/{id}/raftAttributes")
}

/// Writes a node up to its children.
fn open_node(out: &mut String, path: &str, index: usize, value: &str) {
    out.push_str("{\"Path\":");
    push_string(out, path);
    let _infallible = write!(
        out,
        ",\"CreatedIndex\":{index},\"ModifiedIndex\":{index},\
         \"ExpireTime\":\"0001-01-01T00:00:00Z\",\"Value\":"
    );
    push_string(out, value);
    out.push_str(",\"Children\":");
}

fn open_directory(out: &mut String, path: &str, index: usize) {
    open_node(out, path, index, "");
    out.push('{');
}
