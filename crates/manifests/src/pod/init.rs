//! The init containers: `mainstay-restorer init`, and for `Local` stores one that makes the directory writable.

use k8s_openapi::api::core::v1::Container;

use super::{
    CONFIG_MOUNT, CONFIG_VOLUME, INIT_CONTAINER, RUN_MOUNT, RUN_VOLUME, build_client_flags,
    data_mount, into_read_only, pod_identity_env, security, volume_mount,
};
use crate::config;
use crate::context::RenderContext;
use crate::store::StoreAccess;
use crate::values;

/// Program of init containers and Jobs.
pub(crate) const RESTORER: &str = "mainstay-restorer";
/// File from which the kubelet reads the termination message of a container.
pub(crate) const TERMINATION_LOG: &str = "/dev/termination-log";

pub(super) fn render_containers(draft: &RenderContext<'_>) -> Vec<Container> {
    // Root can write the directory without a chown.
    let local = draft.store.as_ref().filter(|_| !draft.runs_as_root());
    let image = &draft.settings.images.restorer;
    let chown = local.and_then(|store| render_chown_container(image, draft.pull_policy(), store));
    chown
        .into_iter()
        .chain([render_init_container(draft)])
        .collect()
}

fn render_init_container(draft: &RenderContext<'_>) -> Container {
    let mut mounts = vec![
        data_mount(draft),
        into_read_only(volume_mount(CONFIG_VOLUME, CONFIG_MOUNT)),
        volume_mount(RUN_VOLUME, RUN_MOUNT),
    ];
    mounts.extend(draft.certificates.client_mounts());
    let mut env = pod_identity_env();
    if let Some(store) = &draft.store {
        mounts.extend(store.mounts.clone());
        env.extend(store.env.clone());
    }
    Container {
        name: INIT_CONTAINER.into(),
        image: Some(draft.settings.images.restorer.clone()),
        image_pull_policy: draft.pull_policy(),
        command: Some(vec![RESTORER.into()]),
        args: Some(build_args(draft)),
        env: Some(env),
        // It verifies the database that etcd opens next, so it needs as much memory as etcd.
        resources: Some(values::resources_or_default(
            draft.etcd.spec.etcd.resources.as_ref(),
            "50m",
            "128Mi",
        )),
        security_context: Some(security::container_context()),
        // If the program exits without a verdict, the end of its log becomes the message.
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

fn build_args(draft: &RenderContext<'_>) -> Vec<String> {
    let mut args = vec![
        "init".to_owned(),
        format!("--termination-message-path={TERMINATION_LOG}"),
        format!("--config-template={CONFIG_MOUNT}/{}", config::KEY),
        format!("--config-output={RUN_MOUNT}/{}", config::KEY),
    ];
    let endpoints = draft.service_endpoints();
    if !endpoints.is_empty() {
        args.push(format!("--service-endpoints={}", endpoints.join(",")));
    }
    args.extend(build_client_flags(draft));
    args.extend(draft.store.iter().flat_map(|store| store.flags.clone()));
    args
}

/// Container that chowns the directory of a `Local` store: the kubelet creates a hostPath directory as root.
pub(crate) fn render_chown_container(
    image: &str,
    pull_policy: Option<String>,
    store: &StoreAccess,
) -> Option<Container> {
    let dir = store.local_dir.as_ref()?;
    Some(Container {
        name: "change-backup-bucket-permissions".into(),
        image: Some(image.to_owned()),
        image_pull_policy: pull_policy,
        command: Some(vec![RESTORER.into()]),
        args: Some(vec![
            "own".into(),
            format!("--owner={0}:{0}", security::NONROOT_UID),
            dir.clone(),
        ]),
        security_context: Some(security::chown_context()),
        volume_mounts: Some(
            store
                .mounts
                .iter()
                .filter(|m| m.mount_path == *dir)
                .cloned()
                .collect(),
        ),
        ..Container::default()
    })
}
