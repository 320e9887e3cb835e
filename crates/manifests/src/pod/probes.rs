//! Probes of etcd. etcd itself serves them on its metrics listener, which requires no certificate.
//!
//! | probe | check | without quorum | with NOSPACE alarm |
//! | --- | --- | --- | --- |
//! | startup | the listener is open | passes | passes |
//! | readiness | linearizable read | fails: etcd cannot serve | passes: etcd serves deletes |
//! | liveness | serializable read (3.5 and later), else the listener is open | **passes** | passes |
//!
//! etcd 3.4 ignores `serializable=true` and performs a linearizable read, so the liveness probe would restart members
//! without quorum. The parameter is used only if the tag of the image is 3.5 or later.

use k8s_openapi::api::core::v1::{HTTPGetAction, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use mainstay_ids::EtcdVersion;

/// First version of etcd with a serializable health check.
const SERIALIZABLE_SINCE: EtcdVersion = EtcdVersion::new(3, 5, 0);
/// NOSPACE is excluded: restarting or isolating a member frees no space, so the alarm is left to users and the
/// controller.
const READINESS_PATH: &str = "/health?exclude=NOSPACE";
// CORRUPT fails readiness only: a restart does not repair the data.
const LIVENESS_PATH: &str = "/health?serializable=true&exclude=NOSPACE&exclude=CORRUPT";

/// Whether etcd has opened its listeners; opening a large database delays that, so the limit is 20 minutes.
pub(crate) fn startup_probe(port: u16) -> Probe {
    Probe {
        tcp_socket: Some(tcp_socket_action(port)),
        period_seconds: Some(2),
        failure_threshold: Some(600),
        timeout_seconds: Some(1),
        ..Probe::default()
    }
}

/// Whether etcd serves clients. Without an answer of its peers, etcd itself takes up to a second for this
/// check.
pub(crate) fn readiness_probe(port: u16) -> Probe {
    Probe {
        http_get: Some(http_get_action(READINESS_PATH, port, "HTTP")),
        period_seconds: Some(5),
        failure_threshold: Some(3),
        timeout_seconds: Some(4),
        ..Probe::default()
    }
}

/// Whether the etcd process responds.
pub(crate) fn liveness_probe(port: u16, version: Option<EtcdVersion>) -> Probe {
    let has_serializable = version.is_some_and(|version| version >= SERIALIZABLE_SINCE);
    let (http_get, tcp_socket) = if has_serializable {
        (Some(http_get_action(LIVENESS_PATH, port, "HTTP")), None)
    } else {
        (None, Some(tcp_socket_action(port)))
    };
    Probe {
        http_get,
        tcp_socket,
        period_seconds: Some(10),
        failure_threshold: Some(6),
        timeout_seconds: Some(10),
        ..Probe::default()
    }
}

/// HTTP GET that must return a success status.
pub(crate) fn http_get_action(path: &str, port: u16, scheme: &str) -> HTTPGetAction {
    HTTPGetAction {
        path: Some(path.into()),
        port: IntOrString::Int(i32::from(port)),
        scheme: Some(scheme.into()),
        ..HTTPGetAction::default()
    }
}

fn tcp_socket_action(port: u16) -> TCPSocketAction {
    TCPSocketAction {
        port: IntOrString::Int(i32::from(port)),
        host: None,
    }
}
