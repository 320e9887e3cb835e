//! Cases of the rules of tasks.

use mainstay_crds::rules::{COPY, OPS};
use serde_json::{Value, json};

use super::{RuleCase, rule_case};
use crate::admission::ResourceChange;

fn copy_change(source: &Value, target: &Value) -> ResourceChange {
    ResourceChange::Create(json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "EtcdCopyBackupsTask",
        "metadata": { "name": "copy" },
        "spec": { "sourceStore": source, "targetStore": target },
    }))
}

pub(super) fn copy_cases() -> Vec<RuleCase> {
    let plain = json!({ "prefix": "p" });
    let good = json!({ "prefix": "p", "endpointOverride": "http://store:9000" });
    let bad = json!({ "prefix": "p", "endpointOverride": "not a url" });
    vec![
        rule_case(
            COPY,
            "spec.sourceStore.endpointOverride",
            "valid URL",
            vec![copy_change(&plain, &plain), copy_change(&good, &plain)],
            vec![copy_change(&bad, &plain)],
        ),
        rule_case(
            COPY,
            "spec.targetStore.endpointOverride",
            "valid URL",
            vec![copy_change(&plain, &good)],
            vec![copy_change(&plain, &bad)],
        ),
    ]
}

fn ops_task_json(config: Value) -> Value {
    json!({
        "apiVersion": "druid.gardener.cloud/v1alpha1",
        "kind": "EtcdOpsTask",
        "metadata": { "name": "task" },
        "spec": { "config": config, "etcdName": "main" },
    })
}

fn task_with(field: &str, value: Value) -> Value {
    let mut task = ops_task_json(json!({ "compact": {} }));
    task["spec"][field] = value;
    task
}

fn snapshot_change(snapshot: Value) -> ResourceChange {
    ResourceChange::Create(ops_task_json(json!({ "onDemandSnapshot": snapshot })))
}

fn restore_change(restore: Value) -> ResourceChange {
    ResourceChange::Create(ops_task_json(json!({ "restore": restore })))
}

pub(super) fn ops_cases() -> Vec<RuleCase> {
    let mut cases = immutable_cases();
    cases.extend(operation_cases());
    cases
}

fn immutable_cases() -> Vec<RuleCase> {
    let plain = || ops_task_json(json!({ "compact": {} }));
    let full = |seconds: i32| {
        ops_task_json(
            json!({ "onDemandSnapshot": { "type": "full", "timeoutSecondsFull": seconds } }),
        )
    };
    vec![
        rule_case(
            OPS,
            "spec.config",
            "config is immutable",
            vec![
                ResourceChange::Update(plain(), plain()),
                // The stored task already has the default.
                ResourceChange::Update(
                    ops_task_json(json!({ "onDemandSnapshot": { "type": "full" } })),
                    full(900),
                ),
            ],
            vec![
                ResourceChange::Update(plain(), ops_task_json(json!({ "defragment": {} }))),
                ResourceChange::Update(full(900), full(901)),
            ],
        ),
        rule_case(
            OPS,
            "spec.ttlSecondsAfterFinished",
            "immutable",
            vec![
                ResourceChange::Update(plain(), task_with("ttlSecondsAfterFinished", json!(3600))),
                ResourceChange::Create(task_with("ttlSecondsAfterFinished", json!(1))),
            ],
            vec![ResourceChange::Update(
                plain(),
                task_with("ttlSecondsAfterFinished", json!(60)),
            )],
        ),
        rule_case(
            OPS,
            "spec.etcdName",
            "immutable",
            vec![
                ResourceChange::Update(plain(), plain()),
                ResourceChange::Update(plain(), task_with("etcdName", Value::Null)),
            ],
            vec![ResourceChange::Update(
                plain(),
                task_with("etcdName", json!("other")),
            )],
        ),
    ]
}

fn operation_cases() -> Vec<RuleCase> {
    let (time, name) = (
        "2026-01-01T00:00:00Z",
        "Full-00000000-00000042-1767225600.gz",
    );
    vec![
        rule_case(
            OPS,
            "spec.config.onDemandSnapshot",
            "isFinal",
            vec![
                snapshot_change(json!({ "type": "delta" })),
                snapshot_change(json!({ "type": "delta", "isFinal": false })),
                snapshot_change(json!({ "type": "full", "isFinal": true })),
            ],
            vec![snapshot_change(json!({ "type": "delta", "isFinal": true }))],
        ),
        rule_case(
            OPS,
            "spec.config.restore",
            "at most one",
            vec![
                restore_change(json!({})),
                restore_change(json!({ "dryRun": true })),
                restore_change(json!({ "toRevision": 7, "dryRun": true })),
                restore_change(json!({ "toTime": time })),
                restore_change(json!({ "fromFull": name })),
            ],
            vec![
                restore_change(json!({ "toRevision": 7, "toTime": time })),
                restore_change(json!({ "toTime": time, "fromFull": name })),
                restore_change(json!({ "toRevision": 7, "fromFull": name })),
            ],
        ),
    ]
}
