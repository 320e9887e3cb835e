//! Etcd variants for tests, and everything that is rendered for them.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use mainstay_crds::store::StoreSpec;
use mainstay_crds::tls::{CaSecretReference, PeerTlsConfig, SecretReference, TlsConfig};
use mainstay_crds::{Etcd, EtcdCopyBackupsTask};
use mainstay_manifests::jobs::{
    CompactionJob, CopyJob, DrillJob, RestoreJob, RestorePoint, RevisionIncrement,
    render_compaction_job, render_copy_job, render_drill_job, render_restore_job,
};
use mainstay_manifests::{
    DefaultImages, Manifests, OperatorSettings, PeerTlsPhase, RenderInput, render,
};

pub(crate) fn crate_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn settings() -> OperatorSettings {
    OperatorSettings::with_images(DefaultImages {
        etcd: "etcd:v3.5.30".into(),
        sidecar: "mainstay-sidecar:1".into(),
        restorer: "mainstay-restorer:1".into(),
    })
}

/// A resource of `crds/tests/resources` as an API server stores it.
pub(crate) fn load_sample(name: &str) -> Etcd {
    let text = fs::read_to_string(crate_path("../../crds/tests/resources").join(name)).unwrap();
    with_stored_metadata(serde_norway::from_str(&text).unwrap())
}

/// File names of all Etcds among the samples.
pub(crate) fn list_samples() -> Vec<String> {
    let files = fs::read_dir(crate_path("../../crds/tests/resources")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("etcd")).collect();
    names.sort();
    names
}

fn with_stored_metadata(mut etcd: Etcd) -> Etcd {
    etcd.metadata
        .namespace
        .get_or_insert_with(|| "shoot".into());
    etcd.metadata.uid = Some("0d0ab2ff-5bb7-4b3b-9b3a-000000000001".into());
    etcd
}

/// Three members, no backup, no TLS.
pub(crate) fn plain_etcd() -> Etcd {
    let mut etcd = Etcd::new("etcd-main", mainstay_crds::EtcdSpec::default());
    etcd.spec.replicas = 3;
    etcd.spec
        .labels
        .insert("app".into(), "control-plane".into());
    with_stored_metadata(etcd)
}

pub(crate) fn secret_ref(name: &str) -> SecretReference {
    SecretReference {
        name: Some(name.into()),
        namespace: None,
    }
}

pub(crate) fn tls_config(name: &str) -> TlsConfig {
    TlsConfig {
        ca: CaSecretReference {
            name: Some(format!("{name}-ca")),
            data_key: Some("bundle.crt".into()),
            ..CaSecretReference::default()
        },
        server: secret_ref(&format!("{name}-server")),
        client: Some(secret_ref(&format!("{name}-client"))),
    }
}

pub(crate) fn peer_tls_config(name: &str) -> PeerTlsConfig {
    PeerTlsConfig {
        tls: tls_config(name),
        skip_client_san_verification: None,
    }
}

pub(crate) fn store_spec(provider: &str) -> StoreSpec {
    StoreSpec {
        container: Some("bucket".into()),
        prefix: "shoot--dev/etcd-main".into(),
        provider: Some(provider.into()),
        secret_ref: Some(secret_ref("backup")),
        endpoint_override: None,
    }
}

/// A store that uses the ambient identity of the pod instead of a secret.
pub(crate) fn store_without_secret(provider: &str) -> StoreSpec {
    StoreSpec {
        secret_ref: None,
        ..store_spec(provider)
    }
}

/// Every provider by one of its aliases.
pub(crate) const PROVIDERS: [&str; 8] = [
    "aws",
    "azure",
    "gcp",
    "openstack",
    "alicloud",
    "dell",
    "openshift",
    "Local",
];

/// TLS of clients, members and sidecar, in every combination.
pub(crate) fn tls_combinations() -> Vec<(String, Etcd)> {
    (0..8u8)
        .map(|bits| {
            let mut etcd = plain_etcd();
            etcd.spec.backup.store = Some(store_spec("aws"));
            let mut parts = Vec::new();
            if bits & 1 > 0 {
                etcd.spec.etcd.client_url_tls = Some(tls_config("client"));
                parts.push("client");
            }
            if bits & 2 > 0 {
                etcd.spec.etcd.peer_url_tls = Some(peer_tls_config("peer"));
                parts.push("peer");
            }
            if bits & 4 > 0 {
                etcd.spec.backup.tls = Some(tls_config("backup"));
                parts.push("sidecar");
            }
            let name = if parts.is_empty() {
                "none".into()
            } else {
                parts.join("-")
            };
            (name, etcd)
        })
        .collect()
}

/// Etcds that differ in everything that changes a pod, each with its shape.
pub(crate) fn etcd_variants() -> Vec<(String, Etcd, RenderInput)> {
    let mut all = Vec::new();
    let mut add = |name: String, etcd: Etcd| {
        let shape = RenderInput::from_etcd(&etcd);
        all.push((name, etcd, shape));
    };
    for name in list_samples() {
        add(name.clone(), load_sample(&name));
    }
    for (name, etcd) in tls_combinations() {
        let mut bare = etcd.clone();
        let both = [
            &mut bare.spec.etcd.client_url_tls,
            &mut bare.spec.backup.tls,
        ];
        for tls in both.into_iter().flatten() {
            tls.client = None;
        }
        add(format!("tls {name}, no client certificates"), bare);
        add(format!("tls {name}"), etcd);
    }
    for provider in PROVIDERS {
        for is_root in [false, true] {
            let mut etcd = plain_etcd();
            etcd.spec.backup.store = Some(store_spec(provider));
            etcd.spec.run_as_root = Some(is_root);
            add(format!("{provider}, root {is_root}"), etcd.clone());
            let store = etcd.spec.backup.store.as_mut().unwrap();
            store.secret_ref = None;
            store.endpoint_override = Some("http://store:9000".into());
            add(format!("{provider}, root {is_root}, ambient"), etcd);
        }
    }
    let mut prefixed = plain_etcd();
    prefixed.spec.member_name_prefix = Some("eu".into());
    prefixed.spec.volume_claim_template = Some("main-etcd".into());
    add("prefixed".into(), prefixed);
    let mut prepared = plain_etcd();
    prepared.spec.etcd.peer_url_tls = Some(peer_tls_config("peer"));
    let shape = RenderInput {
        peer_tls: PeerTlsPhase::Prepared(peer_tls_config("peer")),
        ..RenderInput::from_etcd(&prepared)
    };
    all.push(("prepared".into(), prepared, shape));
    all
}

pub(crate) fn render_etcd(etcd: &Etcd) -> Manifests {
    render(etcd, &settings(), &RenderInput::from_etcd(etcd)).unwrap()
}

pub(crate) fn pod_template(manifests: &Manifests) -> &PodTemplateSpec {
    &manifests.stateful_set.spec.as_ref().unwrap().template
}

pub(crate) fn pod_spec(manifests: &Manifests) -> &PodSpec {
    pod_template(manifests).spec.as_ref().unwrap()
}

pub(crate) fn job_template(job: &Job) -> &PodTemplateSpec {
    &job.spec.as_ref().unwrap().template
}

pub(crate) fn all_containers(pod: &PodSpec) -> impl Iterator<Item = &Container> {
    pod.init_containers.iter().flatten().chain(&pod.containers)
}

pub(crate) fn find_container<'a>(pod: &'a PodSpec, name: &str) -> &'a Container {
    all_containers(pod)
        .find(|container| container.name == name)
        .unwrap()
}

pub(crate) fn container_args(container: &Container) -> &[String] {
    container.args.as_deref().unwrap_or_default()
}

/// Every Job of an Etcd.
pub(crate) fn render_jobs(etcd: &Etcd, shape: &RenderInput) -> Vec<Job> {
    render_jobs_with(&settings(), etcd, shape)
}

pub(crate) fn render_jobs_with(
    settings: &OperatorSettings,
    etcd: &Etcd,
    shape: &RenderInput,
) -> Vec<Job> {
    let restore = RestoreJob {
        ordinal: 1,
        members: vec![1],
        cluster_token: "restored-$1".into(),
        target: RestorePoint::Time("2026-01-31T11:59:00Z".into()),
        prefer_volume: false,
        revision_bump: Some(RevisionIncrement(1_000_000)),
        fence: "5/a1b2/1".into(),
        deadline: Some(std::time::Duration::from_hours(1)),
    };
    vec![
        render_restore_job(etcd, settings, shape, &restore).unwrap(),
        render_compaction_job(etcd, settings, shape, &CompactionJob::default()).unwrap(),
        render_drill_job(etcd, settings, shape, &DrillJob::default()).unwrap(),
    ]
}

/// The Job of a copy from one store to another.
pub(crate) fn render_copy(source: StoreSpec, target: StoreSpec) -> Job {
    render_copy_with(&settings(), source, target)
}

pub(crate) fn render_copy_with(
    settings: &OperatorSettings,
    source: StoreSpec,
    target: StoreSpec,
) -> Job {
    let text = fs::read_to_string(crate_path(
        "../../crds/tests/resources/copy-backups-everything.yaml",
    ));
    let mut task: EtcdCopyBackupsTask = serde_norway::from_str(&text.unwrap()).unwrap();
    task.metadata
        .namespace
        .get_or_insert_with(|| "shoot".into());
    task.metadata.uid = Some("0d0ab2ff-5bb7-4b3b-9b3a-000000000002".into());
    task.spec.source_store = source;
    task.spec.target_store = target;
    render_copy_job(&task, settings, &CopyJob::default()).unwrap()
}

/// Copies between every two providers, and within each provider with one or no secret.
pub(crate) fn render_all_copies() -> Vec<Job> {
    let pairs = PROVIDERS
        .into_iter()
        .flat_map(|source| PROVIDERS.map(|target| (store_spec(source), store_spec(target))));
    let ambient = PROVIDERS.into_iter().flat_map(|provider| {
        let (secret, none) = (store_spec(provider), store_without_secret(provider));
        [
            (secret.clone(), none.clone()),
            (none.clone(), secret),
            (none.clone(), none),
        ]
    });
    pairs
        .chain(ambient)
        .map(|(source, target)| render_copy(source, target))
        .collect()
}
