//! The cases of the rules of tasks.

use mainstay_crds::rules::{COPY, OPS};
use serde_json::{Value, json};

use super::{Case, case};
use crate::trials::Change;

fn copy(source: &Value, target: &Value) -> Change {
    Change::Create(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "EtcdCopyBackupsTask",
        "metadata": { "name": "copy" },
        "spec": { "sourceStore": source, "targetStore": target },
    }))
}

pub(super) fn copy_cases() -> Vec<Case> {
    let plain = json!({ "prefix": "p" });
    let good = json!({ "prefix": "p", "endpointOverride": "http://store:9000" });
    let bad = json!({ "prefix": "p", "endpointOverride": "not a url" });
    vec![
        case(
            COPY,
            "spec.sourceStore.endpointOverride",
            "valid URL",
            vec![copy(&plain, &plain), copy(&good, &plain)],
            vec![copy(&bad, &plain)],
        ),
        case(
            COPY,
            "spec.targetStore.endpointOverride",
            "valid URL",
            vec![copy(&plain, &good)],
            vec![copy(&plain, &bad)],
        ),
    ]
}

fn task(config: Value) -> Value {
    json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "EtcdOpsTask",
        "metadata": { "name": "task" },
        "spec": { "config": config, "etcdName": "main" },
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut task = task(json!({ "compact": {} }));
    task["spec"][field] = value;
    task
}

fn snapshot(snapshot: Value) -> Change {
    Change::Create(task(json!({ "onDemandSnapshot": snapshot })))
}

fn restore(restore: Value) -> Change {
    Change::Create(task(json!({ "restore": restore })))
}

pub(super) fn ops_cases() -> Vec<Case> {
    let mut cases = immutable();
    cases.extend(kinds());
    cases
}

fn immutable() -> Vec<Case> {
    let plain = || task(json!({ "compact": {} }));
    let full = |seconds: i32| {
        task(json!({ "onDemandSnapshot": { "type": "full", "timeoutSecondsFull": seconds } }))
    };
    vec![
        case(
            OPS,
            "spec.config",
            "config is immutable",
            vec![
                Change::Update(plain(), plain()),
                // The default is there already.
                Change::Update(
                    task(json!({ "onDemandSnapshot": { "type": "full" } })),
                    full(900),
                ),
            ],
            vec![
                Change::Update(plain(), task(json!({ "defragment": {} }))),
                Change::Update(full(900), full(901)),
            ],
        ),
        case(
            OPS,
            "spec.ttlSecondsAfterFinished",
            "immutable",
            vec![
                Change::Update(plain(), with("ttlSecondsAfterFinished", json!(3600))),
                Change::Create(with("ttlSecondsAfterFinished", json!(1))),
            ],
            vec![Change::Update(
                plain(),
                with("ttlSecondsAfterFinished", json!(60)),
            )],
        ),
        case(
            OPS,
            "spec.etcdName",
            "immutable",
            vec![
                Change::Update(plain(), plain()),
                Change::Update(plain(), with("etcdName", Value::Null)),
            ],
            vec![Change::Update(plain(), with("etcdName", json!("other")))],
        ),
    ]
}

fn kinds() -> Vec<Case> {
    let (time, name) = (
        "2026-01-01T00:00:00Z",
        "Full-00000000-00000042-1767225600.gz",
    );
    vec![
        case(
            OPS,
            "spec.config.onDemandSnapshot",
            "isFinal",
            vec![
                snapshot(json!({ "type": "delta" })),
                snapshot(json!({ "type": "delta", "isFinal": false })),
                snapshot(json!({ "type": "full", "isFinal": true })),
            ],
            vec![snapshot(json!({ "type": "delta", "isFinal": true }))],
        ),
        case(
            OPS,
            "spec.config.restore",
            "at most one",
            vec![
                restore(json!({})),
                restore(json!({ "dryRun": true })),
                restore(json!({ "toRevision": 7, "dryRun": true })),
                restore(json!({ "toTime": time })),
                restore(json!({ "fromFull": name })),
            ],
            vec![
                restore(json!({ "toRevision": 7, "toTime": time })),
                restore(json!({ "toTime": time, "fromFull": name })),
                restore(json!({ "toRevision": 7, "fromFull": name })),
            ],
        ),
    ]
}
