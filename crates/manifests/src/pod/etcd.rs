//! The etcd container: the upstream image with a plain configuration file and no wrapper.

use k8s_openapi::api::core::v1::{Container, ContainerPort};
use mainstay_ids::EtcdVersion;

use super::{
    ETCD_CONTAINER, RUN_MOUNT, RUN_VOLUME, data_mount, into_read_only, probes, security,
    volume_mount,
};
use crate::config;
use crate::context::RenderContext;
use crate::values;

pub(super) fn render_container(draft: &RenderContext<'_>) -> Container {
    let image = draft.etcd_image();
    let metrics = draft.ports.metrics;
    let mut mounts = vec![
        data_mount(draft),
        into_read_only(volume_mount(RUN_VOLUME, RUN_MOUNT)),
    ];
    mounts.extend(draft.certificates.etcd_mounts());
    Container {
        name: ETCD_CONTAINER.into(),
        image: Some(image.to_owned()),
        image_pull_policy: draft.pull_policy(),
        command: Some(vec!["etcd".into()]),
        args: Some(vec![format!("--config-file={RUN_MOUNT}/{}", config::KEY)]),
        ports: Some(vec![
            container_port("server", draft.ports.peer),
            container_port("client", draft.ports.client),
            container_port("metrics", metrics),
        ]),
        resources: Some(values::resources_or_default(
            draft.etcd.spec.etcd.resources.as_ref(),
            "50m",
            "128Mi",
        )),
        startup_probe: Some(probes::startup_probe(metrics)),
        readiness_probe: Some(probes::readiness_probe(metrics)),
        liveness_probe: Some(probes::liveness_probe(
            metrics,
            EtcdVersion::from_image(image),
        )),
        security_context: Some(security::container_context()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

pub(super) fn container_port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.into()),
        container_port: i32::from(number),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}
