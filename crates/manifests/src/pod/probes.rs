//! Probes of etcd, answered by etcd itself on its listener for metrics, which needs no certificate.
//!
//! | probe | asks | when quorum is lost | when space is short |
//! | --- | --- | --- | --- |
//! | startup | is the listener there | passes | passes |
//! | readiness | a linearizable read | fails: there is nothing to serve | passes: deletes are served |
//! | liveness | a serializable read (3.5 on), else the listener | **passes** | passes |
//!
//! etcd 3.4 knows no serializable health and takes the parameter for nothing, so that the same request would be a
//! linearizable one there; so it is only made where the image says 3.5 or newer.

use k8s_openapi::api::core::v1::{HTTPGetAction, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::version::EtcdVersion;

/// Since when a health check may be serializable.
const SERIALIZABLE_SINCE: EtcdVersion = EtcdVersion::new(3, 5, 0);
/// An alarm about space is for people and for the controller; restarting or cutting off a member does not make space.
const READINESS_PATH: &str = "/health?exclude=NOSPACE";
const LIVENESS_PATH: &str = "/health?serializable=true&exclude=NOSPACE&exclude=CORRUPT";

/// Whether etcd has opened its listeners, which a large database delays: 20 minutes are allowed.
pub(crate) fn startup_probe(port: u16) -> Probe {
    Probe {
        tcp_socket: Some(tcp_socket_action(port)),
        period_seconds: Some(2),
        failure_threshold: Some(600),
        timeout_seconds: Some(1),
        ..Probe::default()
    }
}

/// Whether etcd serves clients. The question itself takes etcd up to a second without an answer from the others.
pub(crate) fn readiness_probe(port: u16) -> Probe {
    Probe {
        http_get: Some(http_get_action(READINESS_PATH, port, "HTTP")),
        period_seconds: Some(5),
        failure_threshold: Some(3),
        timeout_seconds: Some(4),
        ..Probe::default()
    }
}

/// Whether etcd does anything at all.
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

/// A request that has to be answered with success.
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
