//! A kubelet can start the pods, and the restricted Pod Security Standard admits them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use mainstay_manifests::{OperatorSettings, PeerTlsPhase, RenderInput, render};

use crate::support::{
    all_containers, container_args, etcd_variants, find_container, job_template, plain_etcd,
    pod_spec, pod_template, render_all_copies, render_copy_with, render_etcd, render_jobs,
    render_jobs_with, settings, store_spec, tls_config,
};

/// All rendered pods, each with the volumes that a claim template provides.
fn render_all_pods() -> Vec<(String, PodSpec, Vec<String>)> {
    let mut pods = Vec::new();
    for (name, etcd, shape) in etcd_variants() {
        let manifests = render(&etcd, &settings(), &shape).unwrap();
        let pvcs = manifests
            .stateful_set
            .spec
            .as_ref()
            .unwrap()
            .volume_claim_templates
            .iter();
        let pvcs = pvcs
            .flatten()
            .map(|claim| claim.metadata.name.clone().unwrap());
        pods.push((name.clone(), pod_spec(&manifests).clone(), pvcs.collect()));
        for job in render_jobs(&etcd, &shape) {
            let name = format!("{name}: {}", job.metadata.name.as_deref().unwrap());
            pods.push((name, job_template(&job).spec.clone().unwrap(), Vec::new()));
        }
    }
    for job in render_all_copies() {
        pods.push((
            "copy".into(),
            job_template(&job).spec.clone().unwrap(),
            Vec::new(),
        ));
    }
    pods
}

#[test]
fn mounts_and_volumes_match_and_mount_paths_are_unique() {
    for (name, pod, pvcs) in render_all_pods() {
        let declared: Vec<&String> = pod.volumes.iter().flatten().map(|v| &v.name).collect();
        let volumes: BTreeSet<&String> = declared.iter().copied().chain(&pvcs).collect();
        assert_eq!(
            volumes.len(),
            declared.len() + pvcs.len(),
            "{name}: {declared:?}"
        );
        let mut used = BTreeSet::new();
        for container in all_containers(&pod) {
            let mut places = BTreeSet::new();
            for mount in container.volume_mounts.iter().flatten() {
                assert!(volumes.contains(&mount.name), "{name}: {mount:?}");
                assert!(places.insert(&mount.mount_path), "{name}: {mount:?}");
                used.insert(&mount.name);
            }
        }
        assert_eq!(used, volumes, "{name}");
    }
}

#[test]
fn no_environment_variable_is_set_twice() {
    for (name, pod, _) in render_all_pods() {
        for container in all_containers(&pod) {
            let variables: Vec<&String> = container.env.iter().flatten().map(|e| &e.name).collect();
            let distinct: BTreeSet<&&String> = variables.iter().collect();
            assert_eq!(distinct.len(), variables.len(), "{name}: {variables:?}");
        }
    }
}

fn is_restricted(container: &Container) -> bool {
    let Some(security) = &container.security_context else {
        return false;
    };
    let capabilities = security.capabilities.as_ref();
    security.allow_privilege_escalation == Some(false)
        && security.read_only_root_filesystem == Some(true)
        && security.privileged.is_none()
        && security.run_as_user.is_none()
        && capabilities.is_some_and(|c| c.add.is_none() && c.drop == Some(vec!["ALL".into()]))
}

#[test]
fn pods_meet_the_restricted_pod_security_standard() {
    for (name, pod, _) in render_all_pods() {
        let is_local = pod
            .volumes
            .iter()
            .flatten()
            .any(|volume| volume.host_path.is_some());
        let is_root = name.contains("root true");
        let security = pod.security_context.as_ref().unwrap();
        let profile = security
            .seccomp_profile
            .as_ref()
            .map(|profile| profile.type_.as_str());
        assert_eq!(profile, Some("RuntimeDefault"), "{name}");
        assert_eq!(security.run_as_non_root, (!is_root).then_some(true));
        for container in all_containers(&pod) {
            let is_helper = container.name == "change-backup-bucket-permissions";
            assert!(
                is_restricted(container) || (is_helper && is_local),
                "{name}: {container:?}"
            );
        }
        assert!(pod.host_network.is_none() && pod.host_pid.is_none() && pod.host_ipc.is_none());
        assert!(pod.share_process_namespace.is_none(), "{name}");
    }
}

#[test]
fn quorum_loss_restarts_no_member_of_any_version() {
    for (image, serializable) in [
        ("etcd:v3.4.34", false),
        ("etcd:3.5.30", true),
        ("etcd:v3.6.0", true),
        ("etcd@sha256:0123", false),
    ] {
        let mut etcd = plain_etcd();
        etcd.spec.etcd.image = Some(image.into());
        let manifests = render_etcd(&etcd);
        let etcd = find_container(pod_spec(&manifests), "etcd");
        let probe = etcd.liveness_probe.as_ref().unwrap();
        let path = probe.http_get.as_ref().map(|get| get.path.clone().unwrap());
        match path {
            Some(path) => assert!(
                serializable && path.contains("serializable=true"),
                "{image}"
            ),
            None => assert!(!serializable && probe.tcp_socket.is_some(), "{image}"),
        }
        let ready = etcd
            .readiness_probe
            .as_ref()
            .unwrap()
            .http_get
            .as_ref()
            .unwrap();
        assert!(
            !ready.path.as_ref().unwrap().contains("serializable"),
            "{image}"
        );
    }
}

#[test]
fn etcd_probes_need_no_certificate_in_any_tls_combination() {
    for (name, etcd) in crate::support::tls_combinations() {
        let manifests = render_etcd(&etcd);
        let etcd_container = find_container(pod_spec(&manifests), "etcd");
        let ready = etcd_container.readiness_probe.as_ref().unwrap();
        let get = ready.http_get.as_ref().unwrap();
        assert_eq!(get.scheme.as_deref(), Some("HTTP"), "{name}");
        let sidecar = find_container(pod_spec(&manifests), "backup-restore");
        let alive = sidecar
            .liveness_probe
            .as_ref()
            .unwrap()
            .http_get
            .as_ref()
            .unwrap();
        let expected = if etcd.spec.backup.tls.is_some() {
            "HTTPS"
        } else {
            "HTTP"
        };
        assert_eq!(alive.scheme.as_deref(), Some(expected), "{name}");
        assert!(
            sidecar.readiness_probe.is_none(),
            "a failing backup must not remove etcd from the Service"
        );
    }
}

#[test]
fn server_certificate_is_used_without_a_client_certificate() {
    let mut etcd = plain_etcd();
    let mut config = tls_config("client");
    config.client = Some(crate::support::secret_ref(""));
    etcd.spec.etcd.client_url_tls = Some(config);
    let manifests = render_etcd(&etcd);
    let flags = container_args(find_container(pod_spec(&manifests), "backup-restore"));
    assert!(
        flags.contains(&"--cert=/var/etcd/ssl/server/tls.crt".to_owned()),
        "{flags:?}"
    );
}

#[test]
fn tls_listener_without_secret_is_an_error_naming_the_field() {
    let mut etcd = plain_etcd();
    let mut config = tls_config("client");
    config.server.name = None;
    etcd.spec.backup.tls = Some(config);
    let error = render(&etcd, &settings(), &RenderInput::from_etcd(&etcd)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec.backup.tls.serverTLSSecretRef: name of the secret is missing"
    );
}

#[test]
fn held_back_image_size_and_replicas_are_rendered() {
    let mut etcd = plain_etcd();
    etcd.spec.etcd.image = Some("etcd:v3.6.1".into());
    etcd.spec.storage_capacity = Some(quantity("64Gi"));
    let shape = RenderInput {
        replicas: 1,
        etcd_image: Some("etcd:v3.5.30".into()),
        pvc_size: Some(quantity("16Gi")),
        ..RenderInput::from_etcd(&etcd)
    };
    let manifests = render(&etcd, &settings(), &shape).unwrap();
    let set = manifests.stateful_set.spec.as_ref().unwrap();
    assert_eq!(set.replicas, Some(1));
    let image = find_container(pod_spec(&manifests), "etcd")
        .image
        .as_deref();
    assert_eq!(image, Some("etcd:v3.5.30"));
    let claim = set.volume_claim_templates.as_ref().unwrap()[0]
        .spec
        .as_ref()
        .unwrap();
    let size = &claim.resources.as_ref().unwrap().requests.as_ref().unwrap()["storage"];
    assert_eq!(size.0, "16Gi");
    // Members that have not joined yet already have Leases and URLs.
    assert_eq!(manifests.member_leases.len(), 3);
}

fn quantity(text: &str) -> k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.into())
}

#[test]
fn listener_tls_is_read_back_from_a_pod() {
    let mut etcd = plain_etcd();
    let found = |etcd: &mainstay_crds::Etcd| {
        let manifests = render_etcd(etcd);
        let pod = pod_spec(&manifests);
        (
            mainstay_manifests::tls::find_client_tls(pod),
            mainstay_manifests::tls::find_backup_tls(pod),
        )
    };
    assert_eq!(found(&etcd), (None, None));
    let client = crate::support::peer_tls_config("client").tls;
    let mut backup = crate::support::peer_tls_config("backup").tls;
    // The pod contains the name of the sidecar's CA secret, but not the key in it.
    (backup.client, backup.ca.data_key) = (None, None);
    etcd.spec.etcd.client_url_tls = Some(client.clone());
    etcd.spec.backup.tls = Some(backup.clone());
    assert_eq!(found(&etcd), (Some(client), Some(backup)));
}

#[test]
fn peer_tls_is_read_back_from_stateful_set_and_config_map() {
    let mut etcd = plain_etcd();
    let mut config = crate::support::peer_tls_config("peer");
    config.skip_client_san_verification = Some(true);
    config.tls.client = None;
    etcd.spec.etcd.peer_url_tls = Some(config.clone());
    let found = |peer_tls: PeerTlsPhase| {
        let shape = RenderInput {
            peer_tls,
            ..RenderInput::from_etcd(&etcd)
        };
        let manifests = render(&etcd, &settings(), &shape).unwrap();
        mainstay_manifests::tls::find_peer_tls(&manifests.stateful_set, &manifests.config_map)
    };
    assert_eq!(
        found(PeerTlsPhase::On(config.clone())),
        Some(config.clone())
    );
    assert_eq!(found(PeerTlsPhase::Prepared(config.clone())), Some(config));
    assert_eq!(found(PeerTlsPhase::Off), None);
}

#[test]
fn pod_role_is_limited_to_objects_of_its_etcd() {
    let mut etcd = plain_etcd();
    etcd.spec.backup.store = Some(store_spec("aws"));
    let role = render_etcd(&etcd).role.unwrap();
    for rule in role.rules.unwrap() {
        let names = rule.resource_names.unwrap();
        assert!(
            names.iter().all(|name| name.starts_with("etcd-main-")),
            "{names:?}"
        );
        assert!(
            !rule
                .verbs
                .iter()
                .any(|verb| verb == "*" || verb == "list" || verb == "create")
        );
    }
}

#[test]
fn image_pull_secrets_reach_every_pod() {
    let settings = OperatorSettings {
        image_pull_secrets: vec!["registry".into()],
        ..settings()
    };
    let mut etcd = plain_etcd();
    etcd.spec.backup.store = Some(store_spec("aws"));
    let shape = RenderInput::from_etcd(&etcd);
    let mut jobs = render_jobs_with(&settings, &etcd, &shape);
    jobs.push(render_copy_with(
        &settings,
        store_spec("gcp"),
        store_spec("aws"),
    ));
    let manifests = render(&etcd, &settings, &shape).unwrap();
    let members = pod_template(&manifests);
    for template in jobs.iter().map(job_template).chain([members]) {
        let secrets = template.spec.as_ref().unwrap().image_pull_secrets.as_ref();
        assert_eq!(secrets.unwrap()[0].name, "registry");
    }
    // Without the setting, pods stay as they are, so that an upgrade restarts no member.
    let plain = render_etcd(&etcd);
    assert_eq!(pod_spec(&plain).image_pull_secrets, None);
}
