//! Etcds with one difference each, and everything that is rendered for them.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use mainstay_crds::store::StoreSpec;
use mainstay_crds::tls::{CaSecretReference, PeerTlsConfig, SecretReference, TlsConfig};
use mainstay_crds::{Etcd, EtcdCopyBackupsTask};
use mainstay_manifests::jobs::{
    Bump, CompactionJob, CopyJob, DrillJob, RestoreJob, Target, compaction_job, copy_job,
    drill_job, restore_job,
};
use mainstay_manifests::{Images, Manifests, PeerTls, Settings, Shape, render};

pub(crate) fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn settings() -> Settings {
    Settings::with_images(Images {
        etcd: "etcd:v3.5.30".into(),
        sidecar: "mainstay-sidecar:1".into(),
        restorer: "mainstay-restorer:1".into(),
    })
}

/// A resource of `crds/samples` as an API server would have stored it.
pub(crate) fn sample(name: &str) -> Etcd {
    let text = fs::read_to_string(folder("../../crds/samples").join(name)).unwrap();
    stored(serde_norway::from_str(&text).unwrap())
}

/// The names of all Etcds among the samples.
pub(crate) fn samples() -> Vec<String> {
    let files = fs::read_dir(folder("../../crds/samples")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("etcd")).collect();
    names.sort();
    names
}

fn stored(mut etcd: Etcd) -> Etcd {
    etcd.metadata
        .namespace
        .get_or_insert_with(|| "shoot".into());
    etcd.metadata.uid = Some("0d0ab2ff-5bb7-4b3b-9b3a-000000000001".into());
    etcd
}

/// Three members, no backup, no certificates.
pub(crate) fn plain() -> Etcd {
    let mut etcd = Etcd::new("etcd-main", mainstay_crds::EtcdSpec::default());
    etcd.spec.replicas = 3;
    etcd.spec
        .labels
        .insert("app".into(), "control-plane".into());
    stored(etcd)
}

pub(crate) fn secret(name: &str) -> SecretReference {
    SecretReference {
        name: Some(name.into()),
        namespace: None,
    }
}

pub(crate) fn tls(name: &str) -> TlsConfig {
    TlsConfig {
        ca: CaSecretReference {
            name: Some(format!("{name}-ca")),
            data_key: Some("bundle.crt".into()),
            ..CaSecretReference::default()
        },
        server: secret(&format!("{name}-server")),
        client: Some(secret(&format!("{name}-client"))),
    }
}

pub(crate) fn peer_tls(name: &str) -> PeerTlsConfig {
    PeerTlsConfig {
        tls: tls(name),
        skip_client_san_verification: None,
    }
}

pub(crate) fn store(provider: &str) -> StoreSpec {
    StoreSpec {
        container: Some("bucket".into()),
        prefix: "shoot--dev/etcd-main".into(),
        provider: Some(provider.into()),
        secret_ref: Some(secret("backup")),
        endpoint_override: None,
    }
}

/// A store that is reached with what a pod has on it anyway, not with a secret.
pub(crate) fn ambient(provider: &str) -> StoreSpec {
    StoreSpec {
        secret_ref: None,
        ..store(provider)
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

/// Encryption of clients, of members and of the sidecar, in every combination.
pub(crate) fn tls_combinations() -> Vec<(String, Etcd)> {
    (0..8u8)
        .map(|bits| {
            let mut etcd = plain();
            etcd.spec.backup.store = Some(store("aws"));
            let mut parts = Vec::new();
            if bits & 1 > 0 {
                etcd.spec.etcd.client_url_tls = Some(tls("client"));
                parts.push("client");
            }
            if bits & 2 > 0 {
                etcd.spec.etcd.peer_url_tls = Some(peer_tls("peer"));
                parts.push("peer");
            }
            if bits & 4 > 0 {
                etcd.spec.backup.tls = Some(tls("backup"));
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

/// Many Etcds that differ in whatever changes a pod, each with the shape it is in.
pub(crate) fn variety() -> Vec<(String, Etcd, Shape)> {
    let mut all = Vec::new();
    let mut add = |name: String, etcd: Etcd| {
        let shape = Shape::of(&etcd);
        all.push((name, etcd, shape));
    };
    for name in samples() {
        add(name.clone(), sample(&name));
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
            let mut etcd = plain();
            etcd.spec.backup.store = Some(store(provider));
            etcd.spec.run_as_root = Some(is_root);
            add(format!("{provider}, root {is_root}"), etcd.clone());
            let store = etcd.spec.backup.store.as_mut().unwrap();
            store.secret_ref = None;
            store.endpoint_override = Some("http://store:9000".into());
            add(format!("{provider}, root {is_root}, ambient"), etcd);
        }
    }
    let mut prefixed = plain();
    prefixed.spec.member_name_prefix = Some("eu".into());
    prefixed.spec.volume_claim_template = Some("main-etcd".into());
    add("prefixed".into(), prefixed);
    let mut prepared = plain();
    prepared.spec.etcd.peer_url_tls = Some(peer_tls("peer"));
    let shape = Shape {
        peer_tls: PeerTls::Prepared(peer_tls("peer")),
        ..Shape::of(&prepared)
    };
    all.push(("prepared".into(), prepared, shape));
    all
}

pub(crate) fn rendered(etcd: &Etcd) -> Manifests {
    render(etcd, &settings(), &Shape::of(etcd)).unwrap()
}

pub(crate) fn template(manifests: &Manifests) -> &PodTemplateSpec {
    &manifests.stateful_set.spec.as_ref().unwrap().template
}

pub(crate) fn pod(manifests: &Manifests) -> &PodSpec {
    template(manifests).spec.as_ref().unwrap()
}

pub(crate) fn job_template(job: &Job) -> &PodTemplateSpec {
    &job.spec.as_ref().unwrap().template
}

pub(crate) fn containers(pod: &PodSpec) -> impl Iterator<Item = &Container> {
    pod.init_containers.iter().flatten().chain(&pod.containers)
}

pub(crate) fn container<'a>(pod: &'a PodSpec, name: &str) -> &'a Container {
    containers(pod)
        .find(|container| container.name == name)
        .unwrap()
}

pub(crate) fn args(container: &Container) -> &[String] {
    container.args.as_deref().unwrap_or_default()
}

/// Every Job of an Etcd.
pub(crate) fn jobs(etcd: &Etcd, shape: &Shape) -> Vec<Job> {
    let restore = RestoreJob {
        ordinal: 1,
        members: vec![1],
        token: "restored-$1".into(),
        target: Target::Time("2026-01-31T11:59:00Z".into()),
        prefers_volume: false,
        bump: Some(Bump(1_000_000)),
        fence: "5/a1b2/1".into(),
        deadline: Some(std::time::Duration::from_hours(1)),
    };
    let settings = settings();
    vec![
        restore_job(etcd, &settings, shape, &restore).unwrap(),
        compaction_job(etcd, &settings, shape, &CompactionJob::default()).unwrap(),
        drill_job(etcd, &settings, shape, &DrillJob::default()).unwrap(),
    ]
}

/// A copy from one store to another.
pub(crate) fn copy(source: StoreSpec, target: StoreSpec) -> Job {
    let text = fs::read_to_string(folder("../../crds/samples/copy-backups-everything.yaml"));
    let mut task: EtcdCopyBackupsTask = serde_norway::from_str(&text.unwrap()).unwrap();
    task.metadata
        .namespace
        .get_or_insert_with(|| "shoot".into());
    task.metadata.uid = Some("0d0ab2ff-5bb7-4b3b-9b3a-000000000002".into());
    task.spec.source_store = source;
    task.spec.target_store = target;
    copy_job(&task, &settings(), &CopyJob::default()).unwrap()
}

/// Copies between every two kinds of store, and between two of a kind where one has no secret, or neither.
pub(crate) fn copies() -> Vec<Job> {
    let pairs = PROVIDERS
        .into_iter()
        .flat_map(|source| PROVIDERS.map(|target| (store(source), store(target))));
    let ambient = PROVIDERS.into_iter().flat_map(|provider| {
        let (secret, none) = (store(provider), ambient(provider));
        [
            (secret.clone(), none.clone()),
            (none.clone(), secret),
            (none.clone(), none),
        ]
    });
    pairs
        .chain(ambient)
        .map(|(source, target)| copy(source, target))
        .collect()
}
