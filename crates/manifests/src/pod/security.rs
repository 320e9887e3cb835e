//! Security contexts that satisfy the restricted Pod Security Standard.

use k8s_openapi::api::core::v1::{
    Capabilities, PodSecurityContext, SeccompProfile, SecurityContext,
};

/// The `nonroot` user of distroless images.
pub(crate) const NONROOT_UID: i64 = 65532;

/// Pod security context. With `as_root` only the user changes; everything else stays restricted.
pub(crate) fn pod_context(as_root: bool) -> PodSecurityContext {
    let user = if as_root { 0 } else { NONROOT_UID };
    PodSecurityContext {
        run_as_user: Some(user),
        run_as_group: Some(user),
        fs_group: Some(user),
        run_as_non_root: (!as_root).then_some(true),
        // `Always` would chown every file on each pod start, which is slow on large volumes.
        fs_group_change_policy: Some("OnRootMismatch".into()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".into(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

/// Container security context without privileges.
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

/// Security context of the container that chowns a node directory: root with the two required capabilities.
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
