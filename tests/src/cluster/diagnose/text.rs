//! Formats Kubernetes objects and log lines as text. Pure.

use std::cmp::Reverse;
use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Event, Pod};
use mainstay_crds::Etcd;
use mainstay_crds::etcd::EtcdStatus;
use serde_json::{Map, Value};

/// Number of Events shown.
const MAX_EVENTS: usize = 20;

/// The spec and the status of an Etcd.
pub(super) fn format_etcd(etcd: &Etcd) -> String {
    let name = etcd.metadata.name.as_deref().unwrap_or_default();
    let desired = etcd.spec.replicas;
    let Some(status) = &etcd.status else {
        return format!("Etcd {name}: {desired} replicas desired; no status yet");
    };
    let ready = status.ready_replicas.unwrap_or_default();
    let mut lines = vec![format!(
        "Etcd {name}: {desired} replicas desired, {ready} ready"
    )];
    if status.observed_generation != etcd.metadata.generation {
        lines.push("  status is outdated: observedGeneration is older than the spec".to_owned());
    }
    lines.extend(format_status(status));
    lines.join("\n")
}

fn format_status(status: &EtcdStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(last) = &status.last_operation {
        let (state, what) = (&last.state, &last.description);
        lines.push(format!("  operation: {state}: {what}"));
    }
    for error in status.last_errors.iter().flatten() {
        lines.push(format!("  error: {}: {}", error.code, error.description));
    }
    for one in status.conditions.iter().flatten() {
        let (type_, status) = (&one.type_, &one.status);
        let (reason, message) = (&one.reason, &one.message);
        lines.push(format!("  {type_}={status} ({reason}): {message}"));
    }
    for member in status.members.iter().flatten() {
        let role = member.role.as_ref().map(ToString::to_string);
        let role = role.unwrap_or_else(|| "role unknown".to_owned());
        let (name, state, reason) = (&member.name, &member.status, &member.reason);
        lines.push(format!("  member {name}: {role}, {state} ({reason})"));
    }
    let recovery = status
        .mainstay
        .as_ref()
        .and_then(|own| own.recovery.as_ref());
    if let Some(recovery) = recovery {
        let (phase, message) = (&recovery.phase, &recovery.message);
        lines.push(format!("  recovery {phase}: {message}"));
    }
    lines
}

/// A table of pods, as `kubectl get pods --output wide` prints it.
pub(super) fn format_pods(pods: &[Pod], now: Timestamp) -> String {
    let header = ["NAME", "READY", "STATUS", "RESTARTS", "NODE", "AGE"].map(str::to_owned);
    let mut rows = vec![header];
    for pod in pods {
        let statuses = container_statuses(pod);
        let ready = statuses.iter().filter(|one| one.ready).count();
        let restarts: i32 = all_container_statuses(pod)
            .map(|one| one.restart_count)
            .sum();
        let spec = pod.spec.as_ref();
        let total = spec.map_or(0, |spec| spec.containers.len());
        let node = spec.and_then(|spec| spec.node_name.clone());
        let created = pod.metadata.creation_timestamp.as_ref();
        rows.push([
            pod.metadata.name.clone().unwrap_or_default(),
            format!("{ready}/{total}"),
            pod_state(pod),
            restarts.to_string(),
            node.unwrap_or_else(|| "<none>".to_owned()),
            created.map_or_else(String::new, |created| format_age(created.0, now)),
        ]);
    }
    if rows.len() == 1 {
        return "  none".to_owned();
    }
    format_table(&rows)
}

fn format_table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("  {}", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn container_statuses(pod: &Pod) -> &[ContainerStatus] {
    let status = pod.status.as_ref();
    let found = status.and_then(|status| status.container_statuses.as_deref());
    found.unwrap_or_default()
}

fn init_container_statuses(pod: &Pod) -> &[ContainerStatus] {
    let status = pod.status.as_ref();
    let found = status.and_then(|status| status.init_container_statuses.as_deref());
    found.unwrap_or_default()
}

fn all_container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    init_container_statuses(pod)
        .iter()
        .chain(container_statuses(pod))
}

/// The reason why a container does not run; `None` if it runs.
fn not_running_reason(state: Option<&ContainerState>) -> Option<String> {
    let state = state?;
    if let Some(waiting) = &state.waiting {
        return waiting.reason.clone();
    }
    let ended = state.terminated.as_ref()?;
    let code = ended.exit_code;
    let reason = ended.reason.as_deref().unwrap_or("Terminated");
    Some(match code {
        0 => reason.to_owned(),
        code => format!("{reason} (exit code {code})"),
    })
}

fn has_succeeded(container: &ContainerStatus) -> bool {
    let ended = container.state.as_ref();
    ended
        .and_then(|state| state.terminated.as_ref())
        .is_some_and(|ended| ended.exit_code == 0)
}

fn pod_state(pod: &Pod) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        return "Terminating".to_owned();
    }
    let mut starting = init_container_statuses(pod).iter();
    if let Some(init) = starting.find(|one| !has_succeeded(one)) {
        let init_reason =
            not_running_reason(init.state.as_ref()).unwrap_or_else(|| "Running".to_owned());
        return format!("Init:{}:{init_reason}", init.name);
    }
    let mut reasons = container_statuses(pod)
        .iter()
        .filter_map(|one| not_running_reason(one.state.as_ref()));
    let phase = || pod.status.as_ref()?.phase.clone();
    reasons.next().or_else(phase).unwrap_or_default()
}

/// A container whose log may contain the reason why its pod is not ready.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnreadyContainer {
    pub(super) container: String,
    pub(super) restarts: i32,
}

/// Containers that are neither ready nor succeeded.
pub(super) fn unready_containers(pod: &Pod) -> Vec<UnreadyContainer> {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let init = init_container_statuses(pod)
        .iter()
        .filter(|one| !has_succeeded(one));
    let own = container_statuses(pod).iter().filter(|one| !one.ready);
    // Containers that were never started have no log.
    let started = init.chain(own).filter(|one| {
        let runs = one
            .state
            .as_ref()
            .is_some_and(|state| state.waiting.is_none());
        (runs || one.restart_count > 0) && phase != Some("Succeeded")
    });
    started
        .map(|one| UnreadyContainer {
            container: one.name.clone(),
            restarts: one.restart_count,
        })
        .collect()
}

/// The newest Events, oldest first.
pub(super) fn format_events(events: &[Event], now: Timestamp) -> String {
    let mut all: Vec<(Timestamp, &Event)> = events
        .iter()
        .map(|event| (event_time(event), event))
        .collect();
    all.sort_by_key(|(at, _)| Reverse(*at));
    all.truncate(MAX_EVENTS);
    let mut lines: Vec<String> = all
        .into_iter()
        .map(|(at, event)| {
            let about = &event.involved_object;
            let kind = about.kind.as_deref().unwrap_or_default();
            let name = about.name.as_deref().unwrap_or_default();
            let type_ = event.type_.as_deref().unwrap_or_default();
            let reason = event.reason.as_deref().unwrap_or_default();
            let message = event.message.as_deref().unwrap_or_default().trim();
            let times = event.count.filter(|count| *count > 1);
            let times = times
                .map(|count| format!(" (x{count})"))
                .unwrap_or_default();
            let age = format_age(at, now);
            format!("{age:>5} ago  {type_}  {kind}/{name}  {reason}: {message}{times}")
        })
        .collect();
    lines.reverse();
    if lines.is_empty() {
        return "  none".to_owned();
    }
    indent(&lines)
}

fn event_time(event: &Event) -> Timestamp {
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    let series = event.series.as_ref();
    let series = series.and_then(|series| Some(series.last_observed_time.as_ref()?.0));
    let created = event
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| time.0);
    let known = [last, first, series, created].into_iter().flatten().max();
    known.unwrap_or(Timestamp::UNIX_EPOCH)
}

fn format_age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        _ => format!("{}h", seconds / 3600),
    }
}

pub(super) fn indent(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

/// Formats a log line; JSON becomes time, level, message, and the other fields.
pub(super) fn format_log_line(line: &str) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::from_str::<Value>(line) else {
        return line.to_owned();
    };
    if let Some(Value::Object(inner)) = fields.remove("fields") {
        fields.extend(inner);
    }
    let mut shown = String::new();
    for names in [
        &["timestamp", "ts", "time"][..],
        &["level"],
        &["message", "msg"],
    ] {
        let found = names.iter().find_map(|name| fields.remove(*name));
        if let Some(found) = found {
            let _ = write!(shown, "{} ", to_plain_text(&found)); // writing to a String does not fail
        }
    }
    append_fields(&mut shown, &fields);
    shown.trim_end().to_owned()
}

fn append_fields(shown: &mut String, fields: &Map<String, Value>) {
    for (name, value) in fields {
        // The position in the source code does not help to diagnose a cluster.
        if !matches!(
            name.as_str(),
            "caller" | "target" | "filename" | "line_number"
        ) {
            let _ = write!(shown, "{name}={} ", to_plain_text(value)); // as above
        }
    }
}

fn to_plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
