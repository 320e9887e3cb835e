//! Whole objects, as files to read. `MAINSTAY_UPDATE_GOLDEN=1` writes them anew.

use std::fs;

use mainstay_manifests::{Object, RuntimeComponents, Shape, render};
use serde::Serialize;

use crate::support::{
    PROVIDERS, ambient, container, copy, folder, jobs, plain, pod, rendered, sample, samples,
    settings, store, tls_combinations,
};

fn compare(name: &str, text: &str) {
    let path = folder("testdata/golden").join(format!("{name}.yaml"));
    if std::env::var_os("MAINSTAY_UPDATE_GOLDEN").is_some() {
        fs::write(&path, text).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "testdata/golden/{name}.yaml differs from what is rendered; MAINSTAY_UPDATE_GOLDEN=1 writes it anew"
    );
}

fn yaml(value: &impl Serialize) -> String {
    serde_norway::to_string(value).unwrap()
}

fn documents(objects: &[Object]) -> String {
    let texts: Vec<String> = objects.iter().map(|object| yaml(&object.object)).collect();
    texts.join("---\n")
}

#[test]
fn every_sample_is_rendered_as_a_whole() {
    let names = samples();
    assert!(names.len() >= 9, "samples are missing");
    for name in names {
        let manifests = rendered(&sample(&name));
        let stem = name.trim_end_matches(".yaml");
        compare(
            &format!("sample-{stem}"),
            &documents(&manifests.objects().unwrap()),
        );
    }
}

#[test]
fn without_runtime_components_there_are_a_configuration_and_a_template() {
    let etcd = sample("etcd-s3.yaml");
    let shape = Shape {
        runtime_components: RuntimeComponents::Disabled,
        ..Shape::of(&etcd)
    };
    let manifests = render(&etcd, &settings(), &shape).unwrap();
    compare(
        "no-runtime-components",
        &documents(&manifests.objects().unwrap()),
    );
}

#[test]
fn every_provider_has_its_flags_variables_and_volumes() {
    for provider in PROVIDERS {
        let mut etcd = plain();
        etcd.spec.backup.store = Some(store(provider));
        let manifests = rendered(&etcd);
        let pod = pod(&manifests);
        let text = format!(
            "{}---\n{}---\n{}",
            yaml(&pod.volumes),
            yaml(&pod.init_containers),
            yaml(container(pod, "backup-restore"))
        );
        compare(&format!("provider-{provider}"), &text);
    }
}

#[test]
fn every_combination_of_certificates_has_its_configuration_flags_and_volumes() {
    for (name, etcd) in tls_combinations() {
        let manifests = rendered(&etcd);
        let config = &manifests.config_map.data.as_ref().unwrap()["etcd.conf.yaml"];
        let text = format!("{config}---\n{}", yaml(pod(&manifests)));
        compare(&format!("tls-{name}"), &text);
    }
}

#[test]
fn jobs_are_rendered_as_a_whole() {
    let etcd = sample("etcd-everything.yaml");
    for job in jobs(&etcd, &Shape::of(&etcd)) {
        let name = job.metadata.name.clone().unwrap();
        let name = name.trim_start_matches(etcd.metadata.name.as_deref().unwrap());
        compare(&format!("job{name}"), &yaml(&job));
    }
    compare("job-copy", &yaml(&copy(store("gcp"), store("aws"))));
    let ambient = copy(ambient("gcp"), ambient("aws"));
    compare("job-copy-ambient", &yaml(&ambient));
}
