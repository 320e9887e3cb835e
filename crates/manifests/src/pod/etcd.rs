//! The container of etcd: the upstream image, a plain configuration file, nothing around it.

use k8s_openapi::api::core::v1::{Container, ContainerPort};

use super::version::EtcdVersion;
use super::{
    ETCD_CONTAINER, RUN_MOUNT, RUN_VOLUME, data_mount, mount, probes, read_only, security,
};
use crate::config;
use crate::draft::Draft;
use crate::values;

pub(super) fn container(draft: &Draft<'_>) -> Container {
    let image = draft.etcd_image();
    let metrics = draft.ports.metrics;
    let mut mounts = vec![data_mount(draft), read_only(mount(RUN_VOLUME, RUN_MOUNT))];
    mounts.extend(draft.certificates.etcd_mounts());
    Container {
        name: ETCD_CONTAINER.into(),
        image: Some(image.to_owned()),
        image_pull_policy: draft.pull_policy(),
        command: Some(vec!["etcd".into()]),
        args: Some(vec![format!("--config-file={RUN_MOUNT}/{}", config::KEY)]),
        ports: Some(vec![
            port("server", draft.ports.peer),
            port("client", draft.ports.client),
            port("metrics", metrics),
        ]),
        resources: Some(values::resources(
            draft.etcd.spec.etcd.resources.as_ref(),
            "50m",
            "128Mi",
        )),
        startup_probe: Some(probes::startup(metrics)),
        readiness_probe: Some(probes::readiness(metrics)),
        liveness_probe: Some(probes::liveness(metrics, EtcdVersion::of_image(image))),
        security_context: Some(security::container()),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

pub(super) fn port(name: &str, number: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.into()),
        container_port: i32::from(number),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}
