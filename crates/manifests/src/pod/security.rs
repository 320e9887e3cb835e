//! Pods that a namespace with restricted pod security admits.

use k8s_openapi::api::core::v1::{
    Capabilities, PodSecurityContext, SeccompProfile, SecurityContext,
};

/// The user of distroless images that is not root.
pub(crate) const NONROOT_UID: i64 = 65532;

/// The pod: not root unless the Etcd says so, and then nothing else is relaxed.
pub(crate) fn pod_context(as_root: bool) -> PodSecurityContext {
    let user = if as_root { 0 } else { NONROOT_UID };
    PodSecurityContext {
        run_as_user: Some(user),
        run_as_group: Some(user),
        fs_group: Some(user),
        run_as_non_root: (!as_root).then_some(true),
        fs_group_change_policy: Some("OnRootMismatch".into()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".into(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

/// A container that can do nothing but its work.
pub(crate) fn container_context() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".into()]),
            add: None,
        }),
        ..SecurityContext::default()
    }
}

/// A container that gives a directory of the node to [`USER`]: root, with the two capabilities that takes.
pub(crate) fn chown_context() -> SecurityContext {
    SecurityContext {
        run_as_user: Some(0),
        run_as_non_root: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".into()]),
            add: Some(vec!["CHOWN".into(), "DAC_READ_SEARCH".into()]),
        }),
        ..container_context()
    }
}
