//! Compares whole objects with golden files. `MAINSTAY_UPDATE_GOLDEN=1` regenerates them.

use std::fs;

use mainstay_manifests::{
    ManifestObject, OperatorSettings, RenderInput, RuntimeComponents, render,
};
use serde::Serialize;

use crate::support::{
    PROVIDERS, crate_path, find_container, list_samples, load_sample, plain_etcd, pod_spec,
    render_copy, render_etcd, render_jobs, settings, store_spec, store_without_secret,
    tls_combinations,
};

fn assert_golden(name: &str, text: &str) {
    let path = crate_path("testdata/golden").join(format!("{name}.yaml"));
    if std::env::var_os("MAINSTAY_UPDATE_GOLDEN").is_some() {
        fs::write(&path, text).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "testdata/golden/{name}.yaml is out of date; set MAINSTAY_UPDATE_GOLDEN=1 to regenerate it"
    );
}

fn to_yaml(value: &impl Serialize) -> String {
    serde_norway::to_string(value).unwrap()
}

fn to_documents(objects: &[ManifestObject]) -> String {
    let texts: Vec<String> = objects
        .iter()
        .map(|object| to_yaml(&object.object))
        .collect();
    texts.join("---\n")
}

#[test]
fn every_sample_matches_its_golden_file() {
    let names = list_samples();
    assert!(names.len() >= 9, "samples are missing");
    for name in names {
        let manifests = render_etcd(&load_sample(&name));
        let stem = name.trim_end_matches(".yaml");
        assert_golden(
            &format!("sample-{stem}"),
            &to_documents(&manifests.to_objects().unwrap()),
        );
    }
}

#[test]
fn disabled_runtime_components_match_the_golden_file() {
    let etcd = load_sample("etcd-s3.yaml");
    let shape = RenderInput {
        runtime_components: RuntimeComponents::Disabled,
        ..RenderInput::from_etcd(&etcd)
    };
    let manifests = render(&etcd, &settings(), &shape).unwrap();
    assert_golden(
        "no-runtime-components",
        &to_documents(&manifests.to_objects().unwrap()),
    );
}

#[test]
fn every_provider_matches_its_golden_file() {
    for provider in PROVIDERS {
        let mut etcd = plain_etcd();
        etcd.spec.backup.store = Some(store_spec(provider));
        let manifests = render_etcd(&etcd);
        let pod = pod_spec(&manifests);
        let text = format!(
            "{}---\n{}---\n{}",
            to_yaml(&pod.volumes),
            to_yaml(&pod.init_containers),
            to_yaml(find_container(pod, "backup-restore"))
        );
        assert_golden(&format!("provider-{provider}"), &text);
    }
}

#[test]
fn every_tls_combination_matches_its_golden_file() {
    for (name, etcd) in tls_combinations() {
        let manifests = render_etcd(&etcd);
        let config = &manifests.config_map.data.as_ref().unwrap()["etcd.conf.yaml"];
        let text = format!("{config}---\n{}", to_yaml(pod_spec(&manifests)));
        assert_golden(&format!("tls-{name}"), &text);
    }
}

#[test]
fn jobs_match_their_golden_files() {
    let etcd = load_sample("etcd-everything.yaml");
    for job in render_jobs(&etcd, &RenderInput::from_etcd(&etcd)) {
        let name = job.metadata.name.clone().unwrap();
        let name = name.trim_start_matches(etcd.metadata.name.as_deref().unwrap());
        assert_golden(&format!("job{name}"), &to_yaml(&job));
    }
    assert_golden(
        "job-copy",
        &to_yaml(&render_copy(store_spec("gcp"), store_spec("aws"))),
    );
    let ambient = render_copy(store_without_secret("gcp"), store_without_secret("aws"));
    assert_golden("job-copy-ambient", &to_yaml(&ambient));
}

#[test]
fn members_with_image_pull_secrets_match_the_golden_file() {
    let etcd = plain_etcd();
    let settings = OperatorSettings {
        image_pull_secrets: vec!["registry-a".into(), "registry-b".into()],
        ..settings()
    };
    let manifests = render(&etcd, &settings, &RenderInput::from_etcd(&etcd)).unwrap();
    assert_golden("image-pull-secrets", &to_yaml(pod_spec(&manifests)));
}
